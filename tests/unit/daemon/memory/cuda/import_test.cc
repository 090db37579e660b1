// Slabs of other processes, mapped into this one, on a fake machine (tests/fake_cuda).
#include "daemon/memory/cuda/import.h"

#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <optional>
#include <thread>
#include <utility>

#include "tests/support/descriptors.h"
#include "tests/unit/daemon/memory/cuda/import_fixture.h"

namespace wcache {
namespace {

using testing::ChildProcess;
using testing::FakeGpu;
using testing::FakeMachine;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::pattern;

/// CUDA_VISIBLE_DEVICES of this process, until the end.
class Visible {
 public:
  explicit Visible(const std::string& devices) { setenv("CUDA_VISIBLE_DEVICES", devices.c_str(), 1); }
  ~Visible() { unsetenv("CUDA_VISIBLE_DEVICES"); }
};

class ImportOfKind : public Import, public ::testing::WithParamInterface<const char*> {
 protected:
  bool legacy() const { return GetParam() == std::string("legacy"); }
  const char* mapping_call() const { return legacy() ? "cuIpcOpenMemHandle_v2" : "cuMemMap"; }
};
INSTANTIATE_TEST_SUITE_P(, ImportOfKind, ::testing::Values("vmm", "legacy"),
                         [](const auto& kind) { return std::string(kind.param); });

TEST_P(ImportOfKind, GivesTheBytesOfAnotherProcess) {
  const ChildProcess child(gpu_, GetParam(), kNbytes);
  {
    const Result<ImportedSlab> slab = slabs_.import(offer_of(child));
    ASSERT_TRUE(slab) << slab.error().message;
    EXPECT_EQ(read(*slab, 0, kNbytes), pattern(kNbytes));
    const std::vector<unsigned char> all = pattern(kNbytes);
    EXPECT_EQ(read(*slab, 4097, 1000), std::vector<unsigned char>(all.begin() + 4097, all.begin() + 5097));
    EXPECT_EQ(slab->ordinal(), 0);
    EXPECT_EQ(slab->nbytes(), kNbytes);
    EXPECT_EQ(slab->read_only(), !legacy());
    std::byte byte{};
    EXPECT_EQ(slab->read(kNbytes, std::span(&byte, 1)).error().reason, Reason::invalid);
    EXPECT_EQ(slab->read(~0ULL, std::span(&byte, 1)).error().reason, Reason::invalid);
    EXPECT_TRUE(slab->read(kNbytes, {}));
  }
  EXPECT_THAT(leaks(), IsEmpty());
}

TEST_P(ImportOfKind, MapsASlabOnceHoweverOftenItIsAskedFor) {
  const ChildProcess child(gpu_, GetParam(), kNbytes);
  std::vector<ImportedSlab> uses;
  std::mutex mutex;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i)
    threads.emplace_back([&] {
      Result<ImportedSlab> slab = slabs_.import(offer_of(child));
      ASSERT_TRUE(slab) << slab.error().message;
      const std::lock_guard lock(mutex);
      uses.push_back(std::move(*slab));
    });
  for (std::thread& thread : threads) thread.join();
  ASSERT_EQ(uses.size(), 8U);
  for (const ImportedSlab& slab : uses) EXPECT_EQ(slab.data(), uses.front().data());
  EXPECT_EQ(driver_.calls(mapping_call()), 1U);
  while (uses.size() > 1) uses.pop_back();
  EXPECT_EQ(read(uses.front(), 0, 100), pattern(100));
  uses.pop_back();
  EXPECT_THAT(leaks(), IsEmpty());
  EXPECT_TRUE(slabs_.import(offer_of(child)));
  EXPECT_EQ(driver_.calls(mapping_call()), 2U);
}

TEST_P(ImportOfKind, LeavesTheCurrentContextAsItIs) {
  const ChildProcess child(gpu_, GetParam(), kNbytes);
  CUcontext now = nullptr;
  ASSERT_EQ(cuda_.cuInit(0), CUDA_SUCCESS);
  ASSERT_EQ(cuda_.cuCtxSetCurrent(nullptr), CUDA_SUCCESS);
  {
    const Result<ImportedSlab> slab = slabs_.import(offer_of(child));
    ASSERT_TRUE(slab) << slab.error().message;
    read(*slab, 0, 10);
    ASSERT_EQ(cuda_.cuCtxGetCurrent(&now), CUDA_SUCCESS);
    EXPECT_EQ(now, nullptr);
  }
  CUcontext mine = nullptr;
  ASSERT_EQ(cuda_.cuDevicePrimaryCtxRetain(&mine, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuda_.cuCtxSetCurrent(mine), CUDA_SUCCESS);
  {
    const Result<ImportedSlab> slab = slabs_.import(offer_of(child));
    ASSERT_TRUE(slab) << slab.error().message;
    read(*slab, 0, 10);
  }
  ASSERT_EQ(cuda_.cuCtxGetCurrent(&now), CUDA_SUCCESS);
  EXPECT_EQ(now, mine);
}

TEST_P(ImportOfKind, FindsTheDeviceByItsUuid) {
  FakeMachine machine;
  machine.devices.resize(3);
  reconfigure(machine);
  const ChildProcess child(gpu_, GetParam(), kNbytes);  // on device 0
  const Visible visible("2,1,0");
  gpu_.enter_here();
  const Result<ImportedSlab> slab = slabs_.import(offer_of(child));
  ASSERT_TRUE(slab) << slab.error().message;
  EXPECT_EQ(slab->ordinal(), 2);
  EXPECT_EQ(read(*slab, 0, 100), pattern(100));
  const std::vector<FakeGpu::Context> contexts = gpu_.contexts();
  EXPECT_EQ(std::count(contexts.begin(), contexts.end(), FakeGpu::Context{1, getpid()}), 0);
}

TEST_P(ImportOfKind, NamesADeviceThatIsHidden) {
  FakeMachine machine;
  machine.devices.resize(2);
  reconfigure(machine);
  const ChildProcess child(gpu_, GetParam(), kNbytes);
  for (const std::string& visible : {std::string("1"), "GPU-" + FakeGpu::default_uuid(1), std::string()}) {
    const Visible set(visible);
    gpu_.enter_here();
    ImportedSlabs slabs(machine_driver());
    const Error error = error_of(slabs.import(offer_of(child)));
    EXPECT_EQ(error.reason, Reason::unsupported) << error.message;
    EXPECT_THAT(error.message, HasSubstr(uuid(0)));
    EXPECT_THAT(error.message + error.hint, HasSubstr("CUDA_VISIBLE_DEVICES"));
  }
  EXPECT_THAT(leaks(), IsEmpty());
}

TEST_P(ImportOfKind, SaysWhereThereIsNoDriver) {
  ImportedSlabs slabs([] { return load_cuda_driver("/no/libcuda.so.1"); });
  const ChildProcess child(gpu_, GetParam(), kNbytes);
  const Error error = error_of(slabs.import(offer_of(child)));
  EXPECT_EQ(error.reason, Reason::unsupported);
  EXPECT_THAT(error.message, HasSubstr("/no/libcuda.so.1"));
  EXPECT_THAT(error.message, HasSubstr(uuid(0)));
}

TEST_P(ImportOfKind, TellsAChildMadeByForkThatCudaIsLost) {
  const ChildProcess child(gpu_, GetParam(), kNbytes);
  std::optional<ImportedSlab> slab(slabs_.import(offer_of(child)).value());
  const pid_t pid = fork();
  if (pid == 0) {
    const Result<ImportedSlab> again = slabs_.import(offer_of(child));
    slab.reset();
    _exit(!again && again.error().reason == Reason::unsupported ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(read(*slab, 0, 100), pattern(100));
}

TEST_F(Import, OutlivesTheProcessItCameFrom) {
  ChildProcess child(gpu_, "vmm", kNbytes);
  const Result<ImportedSlab> slab = slabs_.import(offer_of(child));
  ASSERT_TRUE(slab) << slab.error().message;
  child.close_fd();
  child.kill();
  EXPECT_EQ(read(*slab, 0, kNbytes), pattern(kNbytes));
}

TEST_F(Import, ImportsADescriptorWhoseProcessIsGone) {
  ChildProcess child(gpu_, "vmm", kNbytes);
  child.kill();
  const Result<ImportedSlab> slab = slabs_.import(offer_of(child));
  ASSERT_TRUE(slab) << slab.error().message;
  EXPECT_EQ(read(*slab, 0, kNbytes), pattern(kNbytes));
}

TEST_F(Import, SaysThatNothingIsBehindAHandleAnyMore) {
  ChildProcess child(gpu_, "legacy", kNbytes);
  child.kill();
  OfferedSlab offer = offer_of(child);
  const Error gone = error_of(slabs_.import(offer));
  EXPECT_EQ(gone.reason, Reason::not_running);
  EXPECT_THAT(gone.message, HasSubstr("nothing is behind the handle"));
  EXPECT_THAT(gone.hint, HasSubstr("vmm"));

  offer.same_pid_namespace = false;
  const Error elsewhere = error_of(slabs_.import(offer));
  EXPECT_EQ(elsewhere.reason, Reason::unsupported);
  EXPECT_THAT(elsewhere.message, HasSubstr("PID namespace"));
  EXPECT_THAT(leaks(), IsEmpty());
}

TEST_F(Import, TypesWhatTheDriverSaysOfAHandle) {
  const ChildProcess child(gpu_, "legacy", kNbytes);
  const std::pair<int, Reason> cases[] = {
      {1, Reason::not_running},   {201, Reason::not_running}, {400, Reason::not_running},
      {711, Reason::over_budget}, {2, Reason::over_budget},   {801, Reason::unsupported},
      {101, Reason::unsupported}, {800, Reason::denied},      {999, Reason::io}};
  for (const auto& [code, reason] : cases) {
    driver_.fail("cuIpcOpenMemHandle_v2:*=" + std::to_string(code));
    EXPECT_EQ(error_of(slabs_.import(offer_of(child))).reason, reason) << code;
  }
}

TEST_F(Import, IsWritableWhereTheDriverHasNoReadOnlyMappings) {
  FakeMachine machine;
  machine.read_only_access = false;
  reconfigure(machine);
  const ChildProcess child(gpu_, "vmm", kNbytes);
  const Result<ImportedSlab> slab = slabs_.import(offer_of(child));
  ASSERT_TRUE(slab) << slab.error().message;
  EXPECT_FALSE(slab->read_only());
  EXPECT_EQ(read(*slab, 0, 100), pattern(100));
}

TEST_F(Import, CannotBeWritten) {
  const ChildProcess child(gpu_, "vmm", kNbytes);
  const Result<ImportedSlab> slab = slabs_.import(offer_of(child));
  ASSERT_TRUE(slab) << slab.error().message;
  start();
  EXPECT_NE(write(reinterpret_cast<CUdeviceptr>(slab->data()), {1, 2, 3}), CUDA_SUCCESS);
}

TEST_F(Import, RefusesASlabThatIsMappedAsAnother) {
  const ChildProcess child(gpu_, "vmm", kNbytes);
  OfferedSlab offer = offer_of(child);
  const Result<ImportedSlab> slab = slabs_.import(offer);
  ASSERT_TRUE(slab) << slab.error().message;
  offer.nbytes = kGranularity;
  EXPECT_EQ(error_of(slabs_.import(offer)).reason, Reason::corrupt);
  offer.nbytes = kNbytes;
  offer.slab = 1;  // another slab of the same instance
  const Result<ImportedSlab> other = slabs_.import(offer);
  ASSERT_TRUE(other) << other.error().message;
  EXPECT_NE(other->data(), slab->data());
}

TEST_F(Import, WaitsForWorkThatReadsTheSlabBeforeItIsUnmapped) {
  FakeMachine machine;
  machine.copy_delay_us = 100'000;
  reconfigure(machine);
  const ChildProcess child(gpu_, "vmm", kNbytes);
  start();
  std::optional<ImportedSlab> slab(slabs_.import(offer_of(child)).value());
  CUdeviceptr copy = 0;
  CUstream stream = nullptr;
  ASSERT_EQ(cuda_.cuMemAlloc_v2(&copy, kNbytes), CUDA_SUCCESS);
  ASSERT_EQ(cuda_.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  const auto from = reinterpret_cast<CUdeviceptr>(slab->data());
  ASSERT_EQ(cuda_.cuMemcpyDtoDAsync_v2(copy, from, kNbytes, stream), CUDA_SUCCESS);
  slab.reset();
  EXPECT_EQ(read_all(copy, kNbytes), pattern(kNbytes));
}

/// Calls that may fail once without anything having gone wrong.
bool may_fail(std::string_view function) {
  for (const std::string_view name :
       {"cuDriverGetVersion",  // a version that cannot be had is no old one
        "cuMemSetAccess",      // read-only access has a substitute
        // Letting go is tried twice, and goes on without what it would rather have.
        "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2", "cuCtxSynchronize", "cuStreamDestroy_v2", "cuMemUnmap",
        "cuMemAddressFree", "cuIpcCloseMemHandle", "cuDevicePrimaryCtxRelease_v2", "cuEventDestroy_v2",
        "cuMemHostUnregister"})
    if (function == name) return true;
  return false;
}

/// Whichever call of the driver fails, and however: the error has a reason of its own, nothing is kept, and
/// the next try works.
TEST_P(ImportOfKind, LeavesNothingWhicheverCallFails) {
  const ChildProcess child(gpu_, GetParam(), kNbytes);
  const auto import_and_read = [&]() -> Status {
    ImportedSlabs slabs(machine_driver());
    const Result<ImportedSlab> slab = slabs.import(offer_of(child));
    if (!slab) return fail(slab.error());
    std::vector<std::byte> bytes(100);
    return slab->read(0, bytes);
  };
  const testing::HeldContext held(driver_);
  driver_.reset();
  ASSERT_TRUE(import_and_read());
  std::size_t tried = 0;
  for (const std::string_view function : fake_cuda::kFunctionNames) {
    if (function.starts_with("cuGetError")) continue;
    const std::uint64_t calls = counter("calls." + std::string(function));
    for (std::uint64_t call = 1; call <= calls; ++call)
      for (const auto& [code, reasons] : std::vector<std::pair<int, std::vector<Reason>>>{
               {1, {Reason::io, Reason::not_running, Reason::unsupported}},
               {2, {Reason::over_budget, Reason::unsupported}},
               {801, {Reason::unsupported}}}) {
        SCOPED_TRACE(std::string(function) + " " + std::to_string(call) + ": " + std::to_string(code));
        const std::size_t descriptors = test::open_descriptors();
        driver_.reset();
        driver_.fail(std::string(function) + ":" + std::to_string(call) + "=" + std::to_string(code));
        const Status done = import_and_read();
        const bool reached =
            driver_.calls(std::string(function)) >= call;  // how often it polls is its own affair
        ++tried;
        EXPECT_THAT(leaks(), ::testing::ElementsAre(testing::HeldContext::kLeak));
        EXPECT_EQ(test::open_descriptors(), descriptors);
        if (done) {
          EXPECT_TRUE(!reached || may_fail(function));
        } else {
          EXPECT_THAT(reasons, ::testing::Contains(done.error().reason)) << done.error().message;
        }
        driver_.reset();
        EXPECT_TRUE(import_and_read());
      }
  }
  EXPECT_GT(tried, 3 * 12U);
}

}  // namespace
}  // namespace wcache

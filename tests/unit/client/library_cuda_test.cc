// libwcache and entries on a device of a fake machine (tests/fake_cuda), which other processes serve.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/wcache.h"
#include "ipc/run_dir.h"
#include "tests/fake_cuda/driver_table.h"
#include "tests/fake_cuda/fake_gpu.h"
#include "tests/support/descriptors.h"
#include "tests/unit/client/device_rank.h"
#include "tests/unit/client/rank_server.h"
#include "tests/unit/client/temporary_directory.h"

namespace wcache {
namespace {

using ::testing::Contains;
using testing::FakeGpu;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::uint64_t kOneSlab = std::uint64_t{64} << 20;
constexpr std::uint64_t kManySlabs = std::uint64_t{3} << 19;

std::string uuid_of(int device) {
  return "GPU-" + FakeGpu::default_uuid(device);
}

/// device_rank, until the end.
class DeviceRank {
 public:
  DeviceRank(const FakeGpu& gpu, const RunDir& run_dir, const std::string& kind, std::uint64_t slab_nbytes,
             int rank = 0, int ranks = 1) {
    std::vector<std::string> words = {
        WCACHE_DEVICE_RANK,   run_dir.path(),        kind,         std::to_string(slab_nbytes),
        std::to_string(rank), std::to_string(ranks), uuid_of(rank)};
    int in[2];
    int out[2];
    if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0) throw std::runtime_error("pipe2");
    std::vector<char*> pointers;
    for (std::string& word : words) pointers.push_back(word.data());
    pointers.push_back(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(in[0], 0);
      dup2(out[1], 1);
      for (const std::string& variable : gpu.environment()) putenv(strdup(variable.c_str()));
      setenv("CUDA_VISIBLE_DEVICES", uuid_of(rank).c_str(), 1);
      execv(pointers[0], pointers.data());
      _exit(127);
    }
    close(in[0]);
    close(out[1]);
    stdin_ = Fd(in[1]);
    const Fd output(out[0]);
    char word[6] = {};
    if (read(output.get(), word, 6) != 6 || std::string_view(word, 6) != "ready\n")
      throw std::runtime_error("device_rank is not ready");
  }
  ~DeviceRank() { kill(); }
  DeviceRank(const DeviceRank&) = delete;
  DeviceRank& operator=(const DeviceRank&) = delete;

  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    waitpid(std::exchange(pid_, 0), nullptr, 0);
  }

 private:
  pid_t pid_ = 0;
  Fd stdin_;
};

class LibraryCuda : public ::testing::Test {
 protected:
  LibraryCuda() {
    testing::FakeMachine machine;
    machine.granularity = 4096;
    machine.devices.resize(2);
    enter(machine);
    for (const test::TestFile& file : test::device_model())
      for (const TensorInfo& tensor : file.tensors)
        expected_[tensor.name] = file.bytes.substr(tensor.offset, tensor.nbytes);
  }
  void TearDown() override {
    wcache_close(opened_);
    EXPECT_THAT(leaks(), IsEmpty());
  }

  /// The library keeps its driver, once loaded: each machine needs its start.
  void enter(const testing::FakeMachine& machine, std::string_view failures = {}) {
    gpu_.configure(machine);
    enter_again(failures);
  }
  void enter_again(std::string_view failures = {}) {
    gpu_.enter_here();
    ASSERT_EQ(cuda_.cuInit(0), CUDA_SUCCESS) << gpu_.errors();
    driver_.reset();
    driver_.fail(std::string(failures));
  }

  wcache_reason open(const wcache_options* options = nullptr) {
    return wcache_open("tiny", run_dir_.path().c_str(), options, &opened_);
  }

  /// The tensor's bytes, read in two pieces.
  static std::string bytes_of(const wcache_entry* entry, const wcache_tensor& tensor) {
    std::string bytes(tensor.nbytes, '\0');
    const std::size_t half = tensor.nbytes / 2;
    EXPECT_EQ(wcache_read(entry, tensor.number, 0, bytes.data(), half), WCACHE_OK) << wcache_last_message();
    EXPECT_EQ(wcache_read(entry, tensor.number, half, bytes.data() + half, bytes.size() - half), WCACHE_OK);
    return bytes;
  }

  void check_all(const wcache_entry* entry, int device = 0) {
    ASSERT_EQ(wcache_tensor_count(entry), expected_.size());
    for (std::size_t i = 0; i < expected_.size(); ++i) {
      wcache_tensor tensor;
      ASSERT_EQ(wcache_tensor_at(entry, i, &tensor), WCACHE_OK) << wcache_last_message();
      const std::string name(tensor.name, tensor.name_nbytes);
      EXPECT_EQ(tensor.device_type, WCACHE_DEVICE_TYPE_CUDA);
      EXPECT_EQ(tensor.device, device);
      EXPECT_EQ(static_cast<const std::byte*>(tensor.base) + tensor.slab_offset, tensor.data);
      EXPECT_LE(tensor.slab_offset + tensor.nbytes, tensor.base_nbytes);
      EXPECT_EQ(tensor.slab_offset % 256, 0U);
      EXPECT_TRUE(bytes_of(entry, tensor) == expected_[name]) << name;
      wcache_tensor again;
      ASSERT_EQ(wcache_tensor_find(entry, name.c_str(), &again), WCACHE_OK);
      EXPECT_EQ(again.data, tensor.data);
      EXPECT_EQ(again.number, i);
    }
  }

  static std::size_t slabs_of(std::uint64_t slab_nbytes) {
    test::TestEntryOptions options;
    options.memfd = true;
    options.device = test::TestDevice{"cuda-vmm", uuid_of(0), slab_nbytes};
    return test::make_test_entry(test::device_model(), options).slab_plan.slabs.size();
  }

  std::vector<std::string> leaks() const { return gpu_.leaks(getpid()); }

  TemporaryDirectory directory_;
  const RunDir run_dir_ = RunDir::open(directory_.path()).value();
  FakeGpu gpu_;
  testing::FakeDriver driver_;
  testing::DriverTable cuda_{driver_.handle()};
  std::map<std::string, std::string> expected_;
  wcache_entry* opened_ = nullptr;
};

class LibraryCudaKinds : public LibraryCuda,
                         public ::testing::WithParamInterface<std::tuple<const char*, std::uint64_t>> {
 protected:
  std::string kind() const { return std::get<0>(GetParam()); }
  std::uint64_t slab_nbytes() const { return std::get<1>(GetParam()); }
  const char* mapping_call() const { return kind() == "vmm" ? "cuMemMap" : "cuIpcOpenMemHandle_v2"; }
};
INSTANTIATE_TEST_SUITE_P(, LibraryCudaKinds,
                         ::testing::Combine(::testing::Values("vmm", "legacy"),
                                            ::testing::Values(kOneSlab, std::uint64_t{4} << 20, kManySlabs)),
                         [](const auto& with) {
                           return std::string(std::get<0>(with.param)) + "_" +
                                  std::to_string(std::get<1>(with.param));
                         });

TEST_P(LibraryCudaKinds, GiveTheBytesOfEveryTensor) {
  const DeviceRank rank(gpu_, run_dir_, kind(), slab_nbytes());
  ASSERT_EQ(open(), WCACHE_OK) << wcache_last_message();
  EXPECT_EQ(driver_.calls("any"), 0U);  // opening touches no device
  check_all(opened_);
  EXPECT_EQ(driver_.calls(mapping_call()), slabs_of(slab_nbytes()));

  wcache_info info;
  ASSERT_EQ(wcache_entry_info(opened_, &info), WCACHE_OK);
  EXPECT_STREQ(info.tier, "cuda");
  EXPECT_EQ(info.ipc_kind, kind() == "vmm" ? std::string("cuda-vmm") : std::string("cuda-ipc"));
  EXPECT_EQ(info.device_uuid, uuid_of(0));
  EXPECT_EQ(info.survives, kind() == "vmm" ? 1 : 0);
  wcache_tensor tensor;
  ASSERT_EQ(wcache_tensor_at(opened_, 0, &tensor), WCACHE_OK);
  EXPECT_EQ(tensor.read_only, kind() == "vmm" ? 1 : 0);
  char byte = 0;
  EXPECT_EQ(wcache_read(opened_, 0, tensor.nbytes, &byte, 1), WCACHE_INVALID);
  EXPECT_EQ(wcache_read(opened_, 99, 0, &byte, 1), WCACHE_INVALID);
}

TEST_P(LibraryCudaKinds, AreDescribedWithoutADevice) {
  const DeviceRank rank(gpu_, run_dir_, kind(), slab_nbytes());
  ASSERT_EQ(open(), WCACHE_OK) << wcache_last_message();
  for (std::size_t i = 0; i < expected_.size(); ++i) {
    wcache_tensor row;
    ASSERT_EQ(wcache_tensor_describe(opened_, i, &row), WCACHE_OK) << wcache_last_message();
    EXPECT_EQ(row.device_type, WCACHE_DEVICE_TYPE_CUDA);
    EXPECT_EQ(row.device, WCACHE_DEVICE_NOT_ASKED);
    EXPECT_EQ(row.data, nullptr);
    EXPECT_EQ(row.base, nullptr);
    size_t number = 0;
    ASSERT_EQ(wcache_tensor_number(opened_, row.name, row.name_nbytes, &number), WCACHE_OK);
    EXPECT_EQ(number, i);
    EXPECT_EQ(row.nbytes, expected_[std::string(row.name, row.name_nbytes)].size());
  }
  EXPECT_EQ(driver_.calls("any"), 0U);
}

TEST_P(LibraryCudaKinds, AreMappedOnceInAProcess) {
  const DeviceRank rank(gpu_, run_dir_, kind(), slab_nbytes());
  std::vector<wcache_entry*> entries(4);
  std::vector<std::thread> threads;
  for (wcache_entry*& entry : entries)
    threads.emplace_back([&] {
      ASSERT_EQ(wcache_open("tiny", run_dir_.path().c_str(), nullptr, &entry), WCACHE_OK)
          << wcache_last_message();
      check_all(entry);
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(driver_.calls(mapping_call()), slabs_of(slab_nbytes()));
  for (std::size_t i = 1; i < entries.size(); ++i) wcache_close(entries[i]);
  check_all(entries[0]);
  wcache_close(entries[0]);
}

TEST_P(LibraryCudaKinds, MapASlabWhenItsFirstTensorIsAskedFor) {
  const DeviceRank rank(gpu_, run_dir_, kind(), slab_nbytes());
  ASSERT_EQ(open(), WCACHE_OK) << wcache_last_message();
  std::set<std::uint32_t> slabs;
  for (std::size_t i = 0; i < expected_.size(); ++i) {
    wcache_tensor tensor;
    ASSERT_EQ(wcache_tensor_at(opened_, i, &tensor), WCACHE_OK) << wcache_last_message();
    slabs.insert(tensor.slab);
    EXPECT_EQ(driver_.calls(mapping_call()), slabs.size());
  }
  EXPECT_EQ(slabs.size(), slabs_of(slab_nbytes()));
}

/// Whichever call of the driver fails: a reason of its own, nothing kept, and the entry stays of use.
TEST_P(LibraryCudaKinds, LeaveNothingWhicheverCallFails) {
  const DeviceRank rank(gpu_, run_dir_, kind(), slab_nbytes());
  const testing::HeldContext held(driver_);
  driver_.reset();
  const std::vector<std::string_view> takes = {"cuDeviceGetCount",      "cuDeviceGet",
                                               "cuDeviceGetUuid_v2",    "cuDevicePrimaryCtxRetain",
                                               "cuCtxPushCurrent_v2",   "cuMemImportFromShareableHandle",
                                               "cuMemAddressReserve",   "cuMemMap",
                                               "cuIpcOpenMemHandle_v2", "cuStreamCreate",
                                               "cuMemHostRegister_v2",  "cuEventCreate",
                                               "cuMemcpyDtoHAsync_v2",  "cuEventRecord",
                                               "cuEventQuery"};
  ASSERT_EQ(open(), WCACHE_OK) << wcache_last_message();
  check_all(opened_);
  wcache_close(std::exchange(opened_, nullptr));
  std::map<std::string_view, unsigned long long> calls;
  for (const std::string_view function : takes) calls[function] = driver_.calls(std::string(function));
  const std::size_t before = test::open_descriptors();
  for (const auto& [function, count] : calls)
    for (unsigned long long call = 1; call <= std::min(count, 3ULL); ++call)
      for (const auto& [code, reason] : std::map<int, wcache_reason>{
               {2, WCACHE_OVER_BUDGET}, {801, WCACHE_UNSUPPORTED}, {999, WCACHE_IO}}) {
        SCOPED_TRACE(std::string(function) + " " + std::to_string(call) + ": " + std::to_string(code));
        driver_.reset();
        driver_.fail(std::string(function) + ":" + std::to_string(call) + "=" + std::to_string(code));
        ASSERT_EQ(open(), WCACHE_OK) << wcache_last_message();
        std::vector<wcache_reason> failures;
        for (std::size_t i = 0; i < expected_.size(); ++i) {
          char byte = 0;
          const wcache_reason done = wcache_read(opened_, i, 0, &byte, 1);
          if (done != WCACHE_OK) failures.push_back(done);
        }
        EXPECT_EQ(failures, std::vector{reason}) << wcache_last_message();
        check_all(opened_);
        wcache_close(std::exchange(opened_, nullptr));
        EXPECT_THAT(leaks(), ::testing::ElementsAre(testing::HeldContext::kLeak));
        EXPECT_EQ(test::open_descriptors(), before);
      }
}

/// The same for every single call, those that give back included: it fails, or goes on without.
TEST_P(LibraryCudaKinds, LeaveNothingWhicheverCallOfAllFails) {
  const DeviceRank rank(gpu_, run_dir_, kind(), slab_nbytes());
  const testing::HeldContext held(driver_);
  driver_.reset();
  const auto use = [&] {
    std::vector<wcache_reason> said;
    EXPECT_EQ(open(), WCACHE_OK) << wcache_last_message();
    for (std::size_t i = 0; i < expected_.size(); ++i) {
      char byte = 0;
      said.push_back(wcache_read(opened_, i, 0, &byte, 1));
    }
    wcache_close(std::exchange(opened_, nullptr));
    return said;
  };
  using ::testing::AnyOf;
  using ::testing::Each;
  EXPECT_THAT(use(), Each(WCACHE_OK)) << wcache_last_message();
  const unsigned long long calls = driver_.calls("any");
  const std::size_t before = test::open_descriptors();
  for (unsigned long long call = 1; call <= calls; ++call)
    for (const int code : {1, 2, 801}) {
      SCOPED_TRACE("call " + std::to_string(call) + " of " + std::to_string(calls) + ": " +
                   std::to_string(code));
      driver_.reset();
      driver_.fail("any:" + std::to_string(call) + "=" + std::to_string(code));
      EXPECT_THAT(use(), Each(AnyOf(WCACHE_OK, WCACHE_IO, WCACHE_OVER_BUDGET, WCACHE_UNSUPPORTED,
                                    WCACHE_NOT_RUNNING)));
      EXPECT_THAT(leaks(), ::testing::ElementsAre(testing::HeldContext::kLeak));
      EXPECT_EQ(test::open_descriptors(), before);
    }
}

TEST_F(LibraryCuda, VmmOutlivesItsDaemonForWhoHasAttached) {
  DeviceRank rank(gpu_, run_dir_, "vmm", kManySlabs);
  ASSERT_EQ(open(), WCACHE_OK) << wcache_last_message();
  wcache_tensor first;
  ASSERT_EQ(wcache_tensor_at(opened_, 0, &first), WCACHE_OK) << wcache_last_message();
  rank.kill();
  check_all(opened_);  // the slabs that were not mapped yet, too
  wcache_entry* second = nullptr;
  EXPECT_EQ(wcache_open("tiny", run_dir_.path().c_str(), nullptr, &second), WCACHE_NOT_RUNNING);
}

TEST_F(LibraryCuda, CannotBeUsedByAChildThatWasForked) {
  const DeviceRank rank(gpu_, run_dir_, "vmm", kManySlabs);
  ASSERT_EQ(open(), WCACHE_OK) << wcache_last_message();
  wcache_tensor tensor;
  ASSERT_EQ(wcache_tensor_at(opened_, 0, &tensor), WCACHE_OK) << wcache_last_message();
  const pid_t child = fork();
  if (child == 0) {
    char byte = 0;
    const bool refused = wcache_tensor_at(opened_, 0, &tensor) == WCACHE_UNSUPPORTED &&
                         wcache_read(opened_, 0, 0, &byte, 1) == WCACHE_UNSUPPORTED &&
                         std::strstr(wcache_last_hint(), "spawn") != nullptr;
    _exit(refused ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  check_all(opened_);
}

TEST_F(LibraryCuda, LegacyIsLostWithItsDaemon) {
  DeviceRank rank(gpu_, run_dir_, "legacy", kManySlabs);
  ASSERT_EQ(open(), WCACHE_OK) << wcache_last_message();
  rank.kill();
  wcache_tensor tensor;
  EXPECT_EQ(wcache_tensor_at(opened_, 0, &tensor), WCACHE_NOT_RUNNING);
  EXPECT_THAT(wcache_last_message(), HasSubstr("nothing is behind the handle"));
  EXPECT_STRNE(wcache_last_hint(), "");
  wcache_close(std::exchange(opened_, nullptr));
  EXPECT_EQ(open(), WCACHE_NOT_RUNNING);
}

/// An entry whose slabs this process itself has made, as wcachefs has those of a daemon that died.
class LibraryCudaOrphan : public LibraryCuda {
 protected:
  test::TestEntry entry() {
    test::TestEntryOptions options;
    options.memfd = true;
    options.device = test::TestDevice{"cuda-vmm", uuid_of(0), kManySlabs};
    test::TestEntry made = test::make_test_entry(test::device_model(), options);
    CUcontext context = nullptr;
    EXPECT_EQ(cuda_.cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuda_.cuCtxSetCurrent(context), CUDA_SUCCESS);
    made.slabs.clear();
    for (const std::string& bytes : slab_bytes(made)) made.slabs.push_back(slab_of(bytes));
    EXPECT_EQ(cuda_.cuCtxSetCurrent(nullptr), CUDA_SUCCESS);
    EXPECT_EQ(cuda_.cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
    return made;
  }

  Fd slab_of(const std::string& bytes) {
    CUmemAllocationProp properties = {};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    CUmemGenericAllocationHandle handle = 0;
    int fd = -1;
    EXPECT_EQ(cuda_.cuMemCreate(&handle, bytes.size(), &properties, 0), CUDA_SUCCESS);
    const CUdeviceptr address = map(handle, bytes.size(), CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    EXPECT_EQ(cuda_.cuMemcpyHtoDAsync_v2(address, bytes.data(), bytes.size(), nullptr), CUDA_SUCCESS);
    EXPECT_EQ(cuda_.cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
              CUDA_SUCCESS);
    unmap(address, bytes.size());
    EXPECT_EQ(cuda_.cuMemRelease(handle), CUDA_SUCCESS);
    return Fd::adopt(fd);
  }

  CUdeviceptr map(CUmemGenericAllocationHandle handle, std::size_t nbytes, CUmemAccess_flags flags) {
    CUmemAccessDesc access = {};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.flags = flags;
    CUdeviceptr address = 0;
    EXPECT_EQ(cuda_.cuMemAddressReserve(&address, nbytes, 0, 0, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuda_.cuMemMap(address, nbytes, 0, handle, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuda_.cuMemSetAccess(address, nbytes, &access, 1), CUDA_SUCCESS);
    return address;
  }
  void unmap(CUdeviceptr address, std::size_t nbytes) {
    EXPECT_EQ(cuda_.cuMemUnmap(address, nbytes), CUDA_SUCCESS);
    EXPECT_EQ(cuda_.cuMemAddressFree(address, nbytes), CUDA_SUCCESS);
  }

  /// What a program that has no more than the driver makes of a descriptor.
  std::string import(int fd, std::size_t nbytes) {
    CUcontext context = nullptr;
    CUmemGenericAllocationHandle handle = 0;
    EXPECT_EQ(cuda_.cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuda_.cuCtxPushCurrent_v2(context), CUDA_SUCCESS);
    void* const number = reinterpret_cast<void*>(static_cast<std::intptr_t>(fd));
    EXPECT_EQ(cuda_.cuMemImportFromShareableHandle(&handle, number, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
              CUDA_SUCCESS);
    const CUdeviceptr address = map(handle, nbytes, CU_MEM_ACCESS_FLAGS_PROT_READ);
    std::string bytes(nbytes, '\0');
    EXPECT_EQ(cuda_.cuMemcpyDtoHAsync_v2(bytes.data(), address, nbytes, nullptr), CUDA_SUCCESS);
    unmap(address, nbytes);
    EXPECT_EQ(cuda_.cuMemRelease(handle), CUDA_SUCCESS);
    EXPECT_EQ(cuda_.cuCtxPopCurrent_v2(&context), CUDA_SUCCESS);
    EXPECT_EQ(cuda_.cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
    return bytes;
  }

  static Says says(bool orphan) {
    Says says;
    says.device = uuid_of(0);
    says.tier = "cuda";
    says.ipc_kind = "cuda-vmm";
    if (!orphan) return says;
    says.state = State::orphaned;
    says.is_mount = true;
    says.pid = 1;
    return says;
  }
};

TEST_F(LibraryCudaOrphan, IsAttachedToThroughTheMount) {
  const RankServer mount(run_dir_, entry(), says(true));
  ASSERT_EQ(open(), WCACHE_OK) << wcache_last_message();
  EXPECT_TRUE(mount.attached_becomes(1));
  check_all(opened_);
}

TEST_F(LibraryCudaOrphan, GivesADescriptorForTheTextOfAnAttribute) {
  const test::TestEntry model = entry();
  const std::vector<std::string> slabs = slab_bytes(model);
  const auto check = [&](const std::string& line, std::size_t slab) {
    int fd = -1;
    std::uint64_t nbytes = 0;
    ASSERT_EQ(wcache_redeem(line.c_str(), &fd, &nbytes), WCACHE_OK) << wcache_last_message();
    const Fd owned(fd);
    ASSERT_EQ(nbytes, slabs[slab].size());
    EXPECT_TRUE(import(fd, nbytes) == slabs[slab]);
    EXPECT_EQ(fcntl(fd, F_GETFD), FD_CLOEXEC);
  };
  {
    const RankServer server(run_dir_, entry(), says(false));
    check("slab=1 socket=" + server.socket(), 1);
    int fd = -1;
    for (const std::string& line :
         {std::string(), std::string("slab=0"), "socket=" + server.socket(),
          "slab=-1 socket=" + server.socket(), "slab=0 role=target socket=" + server.socket(),
          "slab=0 bytes=9 socket=" + server.socket(), std::string("slab=0 socket=")})
      EXPECT_EQ(wcache_redeem(line.c_str(), &fd, nullptr), WCACHE_INVALID) << line;
    EXPECT_EQ(wcache_redeem(nullptr, &fd, nullptr), WCACHE_INVALID);
    EXPECT_EQ(wcache_redeem(("slab=99 socket=" + server.socket()).c_str(), &fd, nullptr), WCACHE_NOT_FOUND);
    EXPECT_EQ(wcache_redeem("slab=0 socket=/no/such.sock", &fd, nullptr), WCACHE_NOT_RUNNING);
    EXPECT_EQ(fd, -1);
  }
  const RankServer mount(run_dir_, entry(), says(true));
  check("slab=2 role=target fingerprint=" + mount.fingerprint() + " rank=0 socket=" + mount.socket(), 2);
}

TEST_F(LibraryCuda, OfRanksThatHoldItWholeTheLowestIsAttachedTo) {
  const DeviceRank first(gpu_, run_dir_, "vmm", kOneSlab, 0, 2);
  const DeviceRank second(gpu_, run_dir_, "vmm", kOneSlab, 1, 2);
  ASSERT_EQ(open(), WCACHE_OK) << wcache_last_message();
  check_all(opened_, 0);
  wcache_close(std::exchange(opened_, nullptr));
  wcache_options options = WCACHE_OPTIONS_INIT;
  options.rank = 1;
  ASSERT_EQ(open(&options), WCACHE_OK) << wcache_last_message();
  check_all(opened_, 1);
  wcache_info info;
  ASSERT_EQ(wcache_entry_info(opened_, &info), WCACHE_OK);
  EXPECT_EQ(info.device_uuid, uuid_of(1));
  EXPECT_EQ(info.ranks, 1U);
}

TEST_F(LibraryCuda, OfRanksThatHoldItWholeTheOneThatCanBeUsedIsAttachedTo) {
  const DeviceRank first(gpu_, run_dir_, "vmm", kOneSlab, 0, 2);
  const DeviceRank second(gpu_, run_dir_, "vmm", kOneSlab, 1, 2);
  setenv("CUDA_VISIBLE_DEVICES", "1", 1);
  enter_again();
  ASSERT_EQ(open(), WCACHE_OK) << wcache_last_message();
  wcache_info info;
  ASSERT_EQ(wcache_entry_info(opened_, &info), WCACHE_OK);
  EXPECT_EQ(info.device_uuid, uuid_of(1));
  check_all(opened_, 0);
  unsetenv("CUDA_VISIBLE_DEVICES");
}

/// However the entry is named: by all that serve it, or straight to its daemons.
TEST_F(LibraryCuda, OfRanksThatHoldItWholeOneThatServesIsAttachedTo) {
  test::TestEntryOptions of_entry;
  of_entry.memfd = true;
  const std::string fingerprint = test::make_test_entry(test::device_model(), of_entry).directory();
  for (const char* kind : {"vmm", "legacy"})
    for (const std::string& name : {std::string("tiny"), fingerprint}) {
      SCOPED_TRACE(kind + (" " + name));
      DeviceRank first(gpu_, run_dir_, kind, kOneSlab, 0, 2);
      const DeviceRank second(gpu_, run_dir_, kind, kOneSlab, 1, 2);
      first.kill();
      // What wcachefs tells of the first: it keeps the memory if that is of vmm, and is the second choice
      // then.
      test::TestEntryOptions options = of_entry;
      options.node_ranks = 2;
      options.device =
          test::TestDevice{kind == std::string("vmm") ? "cuda-vmm" : "cuda-ipc", uuid_of(0), kOneSlab};
      const RankServer mount(run_dir_, test::make_test_entry(test::device_model(), options),
                             {.state = State::orphaned,
                              .device = uuid_of(0),
                              .tier = "cuda",
                              .ipc_kind = options.device->ipc_kind,
                              .pid = 1,
                              .is_mount = true});
      ASSERT_EQ(wcache_open(name.c_str(), run_dir_.path().c_str(), nullptr, &opened_), WCACHE_OK)
          << wcache_last_message();
      wcache_info info;
      ASSERT_EQ(wcache_entry_info(opened_, &info), WCACHE_OK);
      EXPECT_EQ(info.device_uuid, uuid_of(1));
      EXPECT_EQ(mount.attached(), 0);
      wcache_close(std::exchange(opened_, nullptr));
    }
}

TEST_F(LibraryCuda, ADeviceThatIsHiddenIsNamed) {
  const DeviceRank rank(gpu_, run_dir_, "vmm", kOneSlab);
  setenv("CUDA_VISIBLE_DEVICES", "1", 1);
  enter_again();
  ASSERT_EQ(open(), WCACHE_OK) << wcache_last_message();
  wcache_tensor tensor;
  EXPECT_EQ(wcache_tensor_at(opened_, 0, &tensor), WCACHE_UNSUPPORTED);
  unsetenv("CUDA_VISIBLE_DEVICES");
  EXPECT_THAT(wcache_last_message(), HasSubstr(uuid_of(0)));
  EXPECT_THAT(wcache_last_message(), HasSubstr("CUDA_VISIBLE_DEVICES=1"));
}

}  // namespace
}  // namespace wcache

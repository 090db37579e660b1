// Slabs that are let go while the device, another thread or another process is at work.
#include <gmock/gmock.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <optional>
#include <thread>
#include <utility>

#include "tests/unit/daemon/memory/cuda/import_fixture.h"

namespace wcache {
namespace {

using testing::ChildProcess;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::pattern;

constexpr std::chrono::seconds kLong{20};

class ImportLetGo : public Import {
 protected:
  /// Has the device read the slab, which it does not get done until let_copies_go().
  void have_read(const ImportedSlab& slab) {
    gpu_.hold_copies();
    ASSERT_EQ(cuda_.cuMemAlloc_v2(&copy_, kNbytes), CUDA_SUCCESS);
    ASSERT_EQ(cuda_.cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    const auto from = reinterpret_cast<CUdeviceptr>(slab.data());
    ASSERT_EQ(cuda_.cuMemcpyDtoDAsync_v2(copy_, from, kNbytes, stream_), CUDA_SUCCESS);
  }

  /// Ends when `slab` has been let go; returns when that waits for the device.
  std::future<void> let_go_in_a_thread(std::optional<ImportedSlab>& slab) {
    const std::uint64_t before = driver_.calls("cuCtxSynchronize");
    auto done = std::async(std::launch::async, [&slab] { slab.reset(); });
    while (driver_.calls("cuCtxSynchronize") == before) std::this_thread::yield();
    return done;
  }

  CUdeviceptr copy_ = 0;
  CUstream stream_ = nullptr;
};

TEST_F(ImportLetGo, ABusyDeviceIsInNobodysWay) {
  const ChildProcess child(gpu_, "vmm", kNbytes);
  const ChildProcess other(gpu_, "vmm", kNbytes);
  start();
  std::optional<ImportedSlab> slab(slabs_.import(offer_of(child)).value());
  const void* const address = slab->data();
  have_read(*slab);
  std::future<void> let_go = let_go_in_a_thread(slab);

  auto imports = std::async(std::launch::async, [&] {
    return std::pair(slabs_.import(offer_of(other)).value(), slabs_.import(offer_of(child)).value());
  });
  const bool in_time = imports.wait_for(kLong) == std::future_status::ready;
  gpu_.let_copies_go();
  EXPECT_TRUE(in_time);
  const auto [elsewhere, again] = imports.get();
  let_go.get();
  EXPECT_EQ(again.data(), address);  // asked for while it was let go: it stays
  EXPECT_EQ(read(again, 0, kNbytes), pattern(kNbytes));
  EXPECT_EQ(read_all(copy_, kNbytes), pattern(kNbytes));
}

TEST_F(ImportLetGo, WorkOfAUseThatCameInBetweenIsWaitedForToo) {
  const ChildProcess child(gpu_, "vmm", kNbytes);
  start();
  std::optional<ImportedSlab> slab(slabs_.import(offer_of(child)).value());
  have_read(*slab);
  std::future<void> let_go = let_go_in_a_thread(slab);
  const std::uint64_t before = driver_.calls("cuCtxSynchronize");
  slabs_.import(offer_of(child)).value();  // and let go at once, by the thread that waits already
  gpu_.let_copies_go();
  let_go.get();
  EXPECT_EQ(driver_.calls("cuCtxSynchronize"), before + 1);
  EXPECT_EQ(counter("live.mappings"), 0U);
}

TEST_F(ImportLetGo, ComesOutRightHoweverThreadsMeet) {
  const ChildProcess child(gpu_, "vmm", kNbytes);
  const std::vector<unsigned char> expected = pattern(64);
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int i = 0; i < 8; ++i)
    threads.emplace_back([&] {
      for (int turn = 0; turn < 100; ++turn) {
        const Result<ImportedSlab> slab = slabs_.import(offer_of(child));
        std::vector<unsigned char> bytes(64);
        if (!slab || !slab->read(0, std::as_writable_bytes(std::span(bytes))) || bytes != expected) ++wrong;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_THAT(leaks(), IsEmpty());
}

/// As while another thread captures a graph.
class ImportNotWaitedFor : public ImportLetGo {
 protected:
  static constexpr const char* kNoWaiting = "cuCtxSynchronize:*=900";
};

TEST_F(ImportNotWaitedFor, StaysMappedUntilItIsAskedForAgain) {
  const ChildProcess child(gpu_, "vmm", kNbytes);
  start();
  std::optional<ImportedSlab> slab(slabs_.import(offer_of(child)).value());
  const void* const address = slab->data();
  have_read(*slab);
  driver_.fail(kNoWaiting);
  slab.reset();
  EXPECT_EQ(counter("live.mappings"), 1U);
  gpu_.let_copies_go();
  ASSERT_EQ(cuda_.cuStreamSynchronize(stream_), CUDA_SUCCESS);
  EXPECT_EQ(read_all(copy_, kNbytes), pattern(kNbytes));  // the device read what it was asked to
  driver_.fail("");
  slab.emplace(slabs_.import(offer_of(child)).value());
  EXPECT_EQ(slab->data(), address);
  slab.reset();
  EXPECT_EQ(counter("live.mappings"), 0U);
}

TEST_F(ImportNotWaitedFor, GoesWithTheNextImportOrLettingGo) {
  const ChildProcess child(gpu_, "legacy", kNbytes);
  const ChildProcess other(gpu_, "vmm", kNbytes);
  const auto let_go_in_vain = [&] {
    std::optional<ImportedSlab> slab(slabs_.import(offer_of(child)).value());
    driver_.fail(kNoWaiting);
    slab.reset();
    EXPECT_EQ(counter("live.ipc"), 1U);
    driver_.fail("");
  };
  let_go_in_vain();
  std::optional<ImportedSlab> next(slabs_.import(offer_of(other)).value());
  EXPECT_EQ(counter("live.ipc"), 0U);
  let_go_in_vain();
  next.reset();
  EXPECT_THAT(leaks(), IsEmpty());
}

TEST_F(ImportLetGo, AReadThatTheDeviceDoesNotEndEnds) {
  ImportedSlabs slabs(machine_driver(), std::chrono::milliseconds(20));
  const ChildProcess child(gpu_, "vmm", kNbytes);
  std::optional<ImportedSlab> slab(slabs.import(offer_of(child)).value());
  gpu_.hold_copies();
  std::vector<std::byte> mine(1000, std::byte{7});
  const std::vector<std::byte> untouched = mine;
  for (int i = 0; i < 6; ++i) {
    const Status done = slab->read(0, mine);
    ASSERT_FALSE(done);
    EXPECT_EQ(done.error().reason, Reason::timeout) << done.error().message;
    EXPECT_NE(done.error().hint, "");
  }
  EXPECT_EQ(counter("live.registered"), 4U);  // what is left behind has a limit
  gpu_.let_copies_go();
  std::vector<std::byte> all(kNbytes);
  while (!slab->read(0, all)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const std::vector<unsigned char> expected = pattern(kNbytes);
  EXPECT_TRUE(std::ranges::equal(std::as_bytes(std::span(expected)), all));
  slab.reset();
  EXPECT_THAT(leaks(), IsEmpty());
}

TEST_F(ImportLetGo, AChildMadeByForkInTheMiddleOfAnImportIsToldSo) {
  std::promise<void> inside;
  std::promise<void> leave;
  ImportedSlabs slabs([&]() -> Result<std::shared_ptr<const CudaDriver>> {
    inside.set_value();
    leave.get_future().wait();
    return fail(Reason::unsupported, "no driver after all");
  });
  const ChildProcess child(gpu_, "vmm", kNbytes);
  std::thread importing([&] { EXPECT_FALSE(slabs.import(offer_of(child))); });
  inside.get_future().wait();
  const pid_t pid = fork();
  if (pid == 0) {
    alarm(static_cast<unsigned>(kLong.count()));
    const Result<ImportedSlab> slab = slabs.import(offer_of(child));
    const bool told = !slab && slab.error().message.find("fork(2)") != std::string::npos;
    _exit(told && !slabs.visible(uuid(0)) ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0);
  leave.set_value();
  importing.join();
}

TEST_F(ImportLetGo, AChildMadeByForkMayTryWhatItsParentFoundNoDriverFor) {
  int tries = 0;
  ImportedSlabs slabs([&]() -> Result<std::shared_ptr<const CudaDriver>> {
    return fail(Reason::unsupported, "try " + std::to_string(++tries));
  });
  const ChildProcess child(gpu_, "vmm", kNbytes);
  EXPECT_THAT(error_of(slabs.import(offer_of(child))).message, HasSubstr("try 1"));
  const pid_t pid = fork();
  if (pid == 0) {
    const Result<ImportedSlab> slab = slabs.import(offer_of(child));
    _exit(!slab && slab.error().message.find("try 2") != std::string::npos ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0);
}

/// torch in the parent: what the driver says in the child then.
TEST_F(ImportLetGo, ADriverThatCannotBeStartedAfterAForkIsExplained) {
  testing::FakeMachine machine;
  const ChildProcess child(gpu_, "vmm", kNbytes);
  machine.init_error = CUDA_ERROR_NOT_INITIALIZED;
  reconfigure(machine);
  const Error error = error_of(slabs_.import(offer_of(child)));
  EXPECT_EQ(error.reason, Reason::unsupported);
  EXPECT_THAT(error.message, HasSubstr("fork(2)"));
  EXPECT_THAT(error.hint, HasSubstr("spawn"));
}

}  // namespace
}  // namespace wcache

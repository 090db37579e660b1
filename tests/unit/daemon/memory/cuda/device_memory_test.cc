#include "daemon/memory/cuda/device_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "daemon/memory/cuda/pinned.h"
#include "tests/unit/daemon/memory/cuda/cuda_loading.h"

namespace wcache {
namespace {

using namespace std::chrono_literals;
using testing::FakeDisk;
using testing::FakeMachine;
using testing::kMiB;

class DeviceMemoryTest : public testing::CudaTest {
 protected:
  DeviceMemoryTest() {
    plan_ = testing::RandomDraft(7).make(disk_);
    ImagePlan other = plan_.images.front();
    other.kind = FileKind::other;
    plan_.images.push_back(other);
  }

  std::unique_ptr<DeviceEntry> entry(DeviceIpc ipc, std::chrono::milliseconds idle = 1h,
                                     std::chrono::milliseconds patience = 10min) {
    auto target = find_target(ipc).value();
    target.idle = idle;
    target.patience = patience;
    auto filled = load_on_device(plan_, disk_, target);
    EXPECT_TRUE(filled) << filled.error().message;
    return std::move(filled->entry);
  }

  std::size_t other() const { return plan_.images.size() - 1; }

  /// As soon as it is so; a test that waits for ever is ended by ctest.
  static void wait_until_idle(const DeviceEntry& entry) {
    while (entry.has_context()) std::this_thread::sleep_for(1ms);
  }

  FakeDisk disk_;
  EntryPlan plan_;
};

TEST_F(DeviceMemoryTest, AnyRangeCanBeRead) {
  for (const DeviceIpc ipc : {DeviceIpc::vmm, DeviceIpc::legacy}) {
    const auto held = entry(ipc);
    std::mt19937_64 random(1);
    for (std::size_t image = 0; image < other(); ++image) {
      const std::vector<std::byte> expected = testing::expected_image(plan_, disk_, image);
      for (int i = 0; i < 40; ++i) {
        const std::uint64_t begin = random() % (expected.size() + 1);
        const std::uint64_t most = i % 3 == 0 ? 100 : i % 3 == 1 ? 70'000 : 6 * kMiB;
        std::vector<std::byte> bytes(std::min(expected.size() - begin, random() % most));
        ASSERT_TRUE(held->read(image, begin, bytes));
        EXPECT_TRUE(
            std::equal(bytes.begin(), bytes.end(), expected.begin() + static_cast<std::ptrdiff_t>(begin)));
      }
    }
  }
  expect_nothing_left();
}

TEST_F(DeviceMemoryTest, WhatIsNotThereIsInvalid) {
  const auto held = entry(DeviceIpc::vmm);
  std::array<std::byte, 8> out{};
  const std::uint64_t end = plan_.images[0].nbytes;
  EXPECT_EQ(held->read(0, end - 7, out).error().reason, Reason::invalid);
  EXPECT_EQ(held->read(0, ~std::uint64_t{0} - 3, out).error().reason, Reason::invalid);
  EXPECT_EQ(held->read(plan_.images.size(), 0, out).error().reason, Reason::invalid);
  EXPECT_EQ(held->read(other(), 0, out).error().reason, Reason::invalid) << "that one is in host memory";
  EXPECT_TRUE(held->read(0, end, {}));
  EXPECT_TRUE(held->read(0, end - 8, out));
}

TEST_F(DeviceMemoryTest, TheContextIsMadeForAReadAndDroppedWhenIdle) {
  const auto held = entry(DeviceIpc::vmm, 20ms);
  const std::uint64_t used = gpu_.used_bytes(0);
  std::array<std::byte, 8> out{};
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(held->has_context());
    EXPECT_EQ(gpu_.contexts().size(), 0u);
    ASSERT_TRUE(held->read(0, 0, out));
    wait_until_idle(*held);
    EXPECT_EQ(gpu_.leaks(getpid()), std::vector<std::string>());
    EXPECT_EQ(gpu_.used_bytes(0), used);
  }
  EXPECT_EQ(gpu_.counter(getpid(), "contexts_made.0"), 4u);
}

TEST_F(DeviceMemoryTest, TheContextStaysFromReadToRead) {
  const auto held = entry(DeviceIpc::vmm);
  std::array<std::byte, 8> out{};
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(held->read(0, 0, out));
    EXPECT_TRUE(held->has_context());
  }
  EXPECT_EQ(gpu_.counter(getpid(), "contexts_made.0"), 2u);
}

TEST_F(DeviceMemoryTest, SeveralReadWhileItIsDroppedAgainAndAgain) {
  const auto held = entry(DeviceIpc::vmm, 0ms);
  const std::vector<std::byte> expected = testing::expected_image(plan_, disk_, 0);
  std::atomic<int> wrong = 0;
  {
    std::vector<std::jthread> readers;
    for (std::uint64_t seed = 1; seed <= 4; ++seed)
      readers.emplace_back([&, seed] {
        std::mt19937_64 random(seed);
        for (int i = 0; i < 50; ++i) {
          const std::uint64_t begin = random() % expected.size();
          std::vector<std::byte> bytes(std::min<std::uint64_t>(expected.size() - begin, 100'000));
          if (!held->read(0, begin, bytes) ||
              !std::equal(bytes.begin(), bytes.end(), expected.begin() + static_cast<std::ptrdiff_t>(begin)))
            ++wrong;
        }
      });
  }
  EXPECT_EQ(wrong, 0);
  wait_until_idle(*held);
  EXPECT_EQ(gpu_.leaks(getpid()), std::vector<std::string>());
}

TEST_F(DeviceMemoryTest, ItIsMappedForReadingAloneWhereTheDeviceCan) {
  std::array<std::byte, 8> out{};
  for (const bool can : {true, false}) {
    FakeMachine machine;
    machine.read_only_access = can;
    reconfigure(machine);
    const auto held = entry(DeviceIpc::vmm);
    control_.reset();
    ASSERT_TRUE(held->read(0, 0, out));
    EXPECT_EQ(control_.calls("cuMemSetAccess"), can ? 1u : 2u);
    expect_holds(*held, weights_of(plan_), disk_);
  }
}

TEST_F(DeviceMemoryTest, ABrokenContextIsAnErrorOfItsReadAlone) {
  std::array<std::byte, 8> out{};
  for (const DeviceIpc ipc : {DeviceIpc::vmm, DeviceIpc::legacy}) {
    const auto held = entry(ipc);
    ASSERT_TRUE(held->read(0, 0, out));
    const CudaTarget target = find_target(ipc).value();
    {
      const auto context = CudaContext::retain(*target.driver, target.device);
      const auto current = CurrentContext::enter(*context);
      const auto stream = make_stream(*target.driver);
      CUdeviceptr unmapped = 0;
      ASSERT_EQ(target.driver->cuMemAddressReserve(&unmapped, 2 * kMiB, 0, 0, 0), CUDA_SUCCESS);
      const CudaOwned<CUdeviceptr> reserved(
          unmapped, [&](CUdeviceptr at) { return target.driver->cuMemAddressFree(at, 2 * kMiB); });
      ASSERT_EQ(target.driver->cuMemcpyDtoHAsync(out.data(), unmapped, out.size(), stream->get()),
                CUDA_ERROR_ILLEGAL_ADDRESS);
    }
    const Status read = held->read(0, 0, out);
    ASSERT_FALSE(read);
    EXPECT_EQ(read.error().reason, Reason::io);
    EXPECT_EQ(held->has_context(), ipc == DeviceIpc::legacy);
    EXPECT_FALSE(held->read(0, 0, out)) << "the driver has not come to its senses";
    control_.reset();
    EXPECT_TRUE(held->read(0, 0, out));
  }
}

/// Waits for a copy that does not end: in a thread of its own, since `read` blocks.
class HungDevice : public DeviceMemoryTest {
 protected:
  Status read(DeviceEntry& held) {
    std::array<std::byte, 8> out{};
    return held.read(0, 0, out);
  }
  /// In the end, however long that takes: the patience of these tests is soon over on a busy machine.
  std::vector<std::byte> read_surely(DeviceEntry& held, std::uint64_t nbytes) {
    std::vector<std::byte> out(nbytes);
    while (!held.read(0, 0, out)) std::this_thread::sleep_for(1ms);
    return out;
  }
};

TEST_F(HungDevice, RefusesReadsAtOnceAndServesThemAgainWhenItAnswers) {
  for (const DeviceIpc ipc : {DeviceIpc::vmm, DeviceIpc::legacy}) {
    const auto held = entry(ipc, 1h, 20ms);
    read_surely(*held, 8);
    const std::uint64_t contexts = gpu_.counter(getpid(), "contexts_made.0").value();
    gpu_.hold_copies();
    const Status first = read(*held);
    ASSERT_FALSE(first);
    EXPECT_EQ(first.error().reason, Reason::timeout);
    EXPECT_THAT(first.error().message, ::testing::HasSubstr("has not copied"));
    const std::vector<std::string> holds = gpu_.leaks(getpid());
    control_.reset();
    for (int i = 0; i < 20; ++i) {
      const Status again = read(*held);
      ASSERT_FALSE(again);
      EXPECT_EQ(again.error().reason, Reason::timeout);
      EXPECT_THAT(again.error().message, ::testing::HasSubstr("asked of it before"));
    }
    EXPECT_EQ(control_.calls("cuMemcpyDtoHAsync_v2"), 0u) << "nothing more is asked of it";
    EXPECT_EQ(gpu_.leaks(getpid()), holds) << "and nothing more is taken";
    EXPECT_TRUE(held->has_context());
    gpu_.let_copies_go();
    EXPECT_TRUE(read_surely(*held, plan_.images[0].nbytes) == testing::expected_image(plan_, disk_, 0));
    EXPECT_EQ(gpu_.counter(getpid(), "contexts_made.0"), contexts);
  }
  expect_nothing_left();
}

TEST_F(HungDevice, LosesItsContextWhenItAnswersAndNobodyReads) {
  const auto held = entry(DeviceIpc::vmm, 1ms, 1ms);
  gpu_.hold_copies();
  EXPECT_FALSE(read(*held));
  std::this_thread::sleep_for(300ms);
  EXPECT_TRUE(held->has_context()) << "the context is there, whatever it is good for";
  EXPECT_EQ(gpu_.contexts().size(), 1u);
  gpu_.let_copies_go();
  wait_until_idle(*held);
  EXPECT_EQ(gpu_.leaks(getpid()), std::vector<std::string>());
}

/// Would wait for ever, were any of it waited for.
TEST_F(HungDevice, EndsWhoReadsAndWhoHoldsIt) {
  for (const DeviceIpc ipc : {DeviceIpc::vmm, DeviceIpc::legacy}) {
    auto held = entry(ipc);
    gpu_.hold_copies();
    std::vector<std::jthread> readers;
    std::atomic<int> ended = 0;
    control_.reset();
    for (int i = 0; i < 4; ++i)
      readers.emplace_back([&] {
        const Status done = read(*held);
        EXPECT_FALSE(done);
        EXPECT_EQ(done.error().reason, Reason::timeout);
        ++ended;
      });
    while (control_.calls("cuMemcpyDtoHAsync_v2") == 0) std::this_thread::sleep_for(1ms);
    EXPECT_EQ(ended, 0);
    held->stop_reads();
    readers.clear();
    held.reset();
    EXPECT_EQ(gpu_.contexts().size(), 1u) << "what the copy may use stays";
    end_hung_process();
  }
}

TEST_F(HungDevice, IsHungToWhoFailedToAskItForMoreToo) {
  // Two slabs' parts in one turn: the second copy cannot be asked for while the first one is under way.
  const auto held = entry(DeviceIpc::vmm, 1h, 20ms);
  const std::uint64_t nbytes = std::min<std::uint64_t>(plan_.images[0].nbytes, 4 * kMiB);
  std::vector<std::byte> out(nbytes);
  control_.reset();
  read_surely(*held, nbytes);
  ASSERT_GT(control_.calls("cuMemcpyDtoHAsync_v2"), 1u) << "this draft is of no use here";
  control_.reset();
  control_.fail("cuMemcpyDtoHAsync_v2:2=999");
  gpu_.hold_copies();
  EXPECT_EQ(held->read(0, 0, out).error().reason, Reason::io);
  EXPECT_TRUE(held->has_context());
  EXPECT_EQ(held->read(0, 0, out).error().reason, Reason::timeout);
  gpu_.let_copies_go();
  out = read_surely(*held, nbytes);
  const std::vector<std::byte> expected = testing::expected_image(plan_, disk_, 0);
  EXPECT_TRUE(std::equal(out.begin(), out.end(), expected.begin()));
}

}  // namespace
}  // namespace wcache

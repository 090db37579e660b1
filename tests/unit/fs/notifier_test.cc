#include "fs/notifier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/null_sink.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <latch>

namespace wcache {
namespace {

using testing::ElementsAre;

class FakeKernelCache : public KernelCache {
 public:
  int drop_name(std::uint64_t directory, const std::string& name) override {
    return record("drop", directory, name);
  }
  int delete_name(std::uint64_t directory, std::uint64_t, const std::string& name) override {
    return record("delete", directory, name);
  }
  int drop_attributes(std::uint64_t inode) override { return record("attributes", inode, ""); }

  std::vector<std::string> calls() {
    const std::lock_guard lock(mutex_);
    return calls_;
  }
  std::atomic<bool> blocked = false;
  std::atomic<int> waiting = 0;

 private:
  int record(const std::string& what, std::uint64_t inode, const std::string& name) {
    ++waiting;
    while (blocked) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    --waiting;
    const std::lock_guard lock(mutex_);
    calls_.push_back(what + " " + std::to_string(inode) + " " + name);
    return -ENOENT;
  }
  std::mutex mutex_;
  std::vector<std::string> calls_;
};

class NotifierOfAKernel : public testing::Test {
 protected:
  FakeKernelCache kernel_;
  spdlog::logger log_{"test", std::make_shared<spdlog::sinks::null_sink_mt>()};
  Notifier notifier_{kernel_, log_};
};

TEST_F(NotifierOfAKernel, TellsByWhatHappened) {
  notifier_.notify({{4, "new", 0, false}, {5, "gone", 17, false}, {6, "used", 18, true}});
  ASSERT_TRUE(notifier_.wait_sent(std::chrono::seconds(5)));
  EXPECT_THAT(kernel_.calls(),
              ElementsAre("attributes 4 ", "delete 5 gone", "attributes 5 ", "drop 6 used", "attributes 6 "));
}

TEST_F(NotifierOfAKernel, ANameThatWaitsIsToldOnce) {
  kernel_.blocked = true;
  notifier_.notify({{1, "first", 0, false}});
  while (kernel_.waiting == 0) std::this_thread::yield();
  for (int i = 0; i < 100; ++i) notifier_.notify({{4, "same", i == 0 ? 7u : 0u, false}});
  EXPECT_FALSE(notifier_.wait_sent(std::chrono::milliseconds(5)));
  kernel_.blocked = false;
  ASSERT_TRUE(notifier_.wait_sent(std::chrono::seconds(5)));
  EXPECT_THAT(kernel_.calls(), ElementsAre("attributes 1 ", "delete 4 same", "attributes 4 "));
}

TEST_F(NotifierOfAKernel, DisarmedItTellsNothingMore) {
  kernel_.blocked = true;
  notifier_.notify({{1, "a", 0, false}, {2, "b", 9, false}});
  while (kernel_.waiting == 0) std::this_thread::yield();
  std::thread disarm([&] { notifier_.disarm(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  kernel_.blocked = false;
  disarm.join();
  notifier_.notify({{3, "c", 0, false}});
  EXPECT_THAT(kernel_.calls(), ElementsAre("attributes 1 "));
}

}  // namespace
}  // namespace wcache

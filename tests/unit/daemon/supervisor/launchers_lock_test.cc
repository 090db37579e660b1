#include "daemon/supervisor/launchers_lock.h"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <thread>
#include <vector>

#include "tests/unit/client/temporary_directory.h"

namespace wcache {
namespace {

bool never() {
  return false;
}

LaunchersLock share(const std::string& path) {
  return std::move(LaunchersLock::share(path, deadline_in(std::chrono::seconds(20)), never).value());
}

TEST(LaunchersLock, OnlyTheLastOneIsLast) {
  const TemporaryDirectory directory;
  LaunchersLock first = share(directory / "lock");
  LaunchersLock second = share(directory / "lock");
  EXPECT_FALSE(first.become_last());
  EXPECT_TRUE(second.become_last());  // the first does not count any more
}

TEST(LaunchersLock, TheLastOneRemovesTheFile) {
  const TemporaryDirectory directory;
  {
    LaunchersLock only = share(directory / "lock");
    EXPECT_TRUE(only.become_last());
    EXPECT_TRUE(std::filesystem::exists(directory / "lock"));
  }
  EXPECT_FALSE(std::filesystem::exists(directory / "lock"));
}

TEST(LaunchersLock, OneThatIsDroppedWithoutBecomingLastLeavesTheFile) {
  const TemporaryDirectory directory;
  { const LaunchersLock crashed = share(directory / "lock"); }
  EXPECT_TRUE(std::filesystem::exists(directory / "lock"));
  LaunchersLock next = share(directory / "lock");
  EXPECT_TRUE(next.become_last());
}

TEST(LaunchersLock, NewcomersWaitForTheLastOneAndCanBeInterrupted) {
  const TemporaryDirectory directory;
  LaunchersLock last = share(directory / "lock");
  ASSERT_TRUE(last.become_last());
  const auto late =
      LaunchersLock::share(directory / "lock", deadline_in(std::chrono::milliseconds(50)), never);
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().reason, Reason::timeout);
  const auto interrupted =
      LaunchersLock::share(directory / "lock", deadline_in(std::chrono::hours(1)), [] { return true; });
  EXPECT_FALSE(interrupted);
}

TEST(LaunchersLock, ExactlyOneOfManyIsLast) {
  const TemporaryDirectory directory;
  std::vector<LaunchersLock> locks;
  for (int i = 0; i < 8; ++i) locks.push_back(share(directory / "lock"));
  std::atomic<int> lasts = 0;
  std::vector<std::thread> threads;
  for (LaunchersLock& lock : locks) threads.emplace_back([&] { lasts += lock.become_last() ? 1 : 0; });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(lasts, 1);
}

}  // namespace
}  // namespace wcache

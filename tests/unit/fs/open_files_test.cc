#include "fs/open_files.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <thread>

#include "tests/unit/fs/part_of.h"

namespace wcache {
namespace {

using namespace test;

class OpenFilesOfAnEntry : public testing::Test {
 protected:
  std::uint64_t open(const std::shared_ptr<Entry>& entry, int thread, NodeKind kind = NodeKind::file) {
    return files_.add({Node{kind, 99, Role::target, entry, 0}, OpenMode::cached, false, nullptr}, thread);
  }
  double now_ = 10;
  OpenFiles files_{[this] { return now_; }};
  std::shared_ptr<Entry> entry_ = entry_of({{"config.json", "{}"}});
};

TEST_F(OpenFilesOfAnEntry, HandlesAreFoundAndRemoved) {
  const std::uint64_t a = open(entry_, 1), b = open(entry_, 1);
  EXPECT_NE(a, b);
  EXPECT_NE(files_.find(a), nullptr);
  EXPECT_EQ(files_.open_count(*entry_), 2u);
  EXPECT_NE(files_.remove(a), nullptr);
  EXPECT_EQ(files_.remove(a), nullptr);
  EXPECT_EQ(files_.find(a), nullptr);
  EXPECT_EQ(files_.open_count(*entry_), 1u);
  EXPECT_EQ(files_.find_directory(b), nullptr);
}

TEST_F(OpenFilesOfAnEntry, HoldersAreProcessesNotThreads) {
  std::thread([&] { open(entry_, static_cast<int>(syscall(SYS_gettid))); }).join();
  now_ = 5;
  std::thread opener([&] {
    const std::uint64_t handle = open(entry_, static_cast<int>(syscall(SYS_gettid)));
    files_.identify(handle);
  });
  opener.join();
  open(entry_, getpid());
  const std::vector<Holder> holders = files_.holders(*entry_);
  // The first thread was gone before anybody asked whose it was.
  ASSERT_EQ(holders.size(), 2u);
  const Holder& own = holders[0].pid == getpid() ? holders[0] : holders[1];
  EXPECT_EQ(own.pid, getpid());
  EXPECT_EQ(own.command, "fs_test");
  EXPECT_EQ(own.since, 5);
}

TEST_F(OpenFilesOfAnEntry, StatusFilesAndOtherEntriesDoNotCount) {
  const auto other = entry_of({{"config.json", "other"}});
  open(other, getpid());
  open(entry_, getpid(), NodeKind::entry_status);
  EXPECT_EQ(files_.open_count(*entry_), 0u);
  EXPECT_TRUE(files_.holders(*entry_).empty());
  EXPECT_EQ(files_.holders(*other).size(), 1u);
}

TEST_F(OpenFilesOfAnEntry, ALeaseHoldsAndKeepsNothingAlive) {
  std::shared_ptr<const void> lease = files_.lease(entry_, {4711, "engine", 3});
  open(entry_, getpid());
  EXPECT_EQ(files_.open_count(*entry_), 2u);
  EXPECT_EQ(files_.holders(*entry_).size(), 2u);
  lease = files_.lease(entry_, {getpid(), "fs_test", 3});
  ASSERT_EQ(files_.holders(*entry_).size(), 1u) << "the same process";
  EXPECT_EQ(files_.holders(*entry_)[0].since, 3);
  lease.reset();
  EXPECT_EQ(files_.open_count(*entry_), 1u);

  const auto other = entry_of({{"config.json", "other"}});
  const std::weak_ptr<Entry> weak = other;
  lease = files_.lease(other, {4711, "engine", 3});
  EXPECT_EQ(weak.use_count(), 1);
  EXPECT_EQ(files_.open_count(*entry_), 1u);
}

}  // namespace
}  // namespace wcache

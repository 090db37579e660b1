// Files of an entry whose weights are on a device, from the kernel's request to the daemon's bytes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <thread>

#include "fs/file_system.h"
#include "tests/unit/fs/fake_backing.h"
#include "tests/unit/fs/fake_kernel.h"
#include "tests/unit/fs/reading_daemon.h"

namespace wcache {
namespace {

using namespace test;
using Mode = ReadingDaemon::Mode;
using Reply = FakeKernel::Reply;

constexpr uid_t kOwner = 1001;

class FilesOfADevice : public testing::Test {
 protected:
  void SetUp() override {
    entry_ = *Entry::make({daemon_.part()}, 1000.5);
    tree_.publish(entry_);
  }
  // A session ends after what it serves, as in the mount.
  void TearDown() override {
    for (const auto& part : entry_->parts()) part->lose_daemon();
    EXPECT_TRUE(fs_.end_device_reads(std::chrono::seconds(10)));
  }
  std::string base() const { return "target/" + entry_->directory_name(); }
  std::uint64_t weights() { return kernel_.walk(base() + "/model-00002-of-00002.safetensors"); }
  std::uint64_t tensor(const std::string& name) { return kernel_.walk(base() + "/.wcache/tensors/" + name); }
  std::uint64_t open(std::uint64_t inode) { return kernel_.open(inode).as<fuse_open_out>().fh; }
  std::uint64_t send_read(std::uint64_t inode, std::uint64_t handle, std::uint64_t offset,
                          std::uint32_t size) {
    fuse_read_in in{};
    in.fh = handle;
    in.offset = offset;
    in.size = size;
    return kernel_.send(FUSE_READ, inode, FakeKernel::bytes_of(in));
  }

  ReadingDaemon daemon_{device_entry(small_model())};
  Tree tree_{[] { return std::int64_t{1'000'000'000}; }};
  OpenFiles files_{[] { return 50.0; }};
  Passthrough passthrough_;
  StatusThread status_{[] { return std::string("{}\n"); }};
  FileSystem fs_{{kOwner, 1002, "/mnt/wcache", 7'000'000'000, "/run/wcachefs.sock"},
                 tree_,
                 files_,
                 passthrough_,
                 status_,
                 [](const Entry&) { return MappingScan{}; },
                 quiet_log()};
  FakeKernel kernel_{fs_};
  std::shared_ptr<Entry> entry_;
};

TEST_F(FilesOfADevice, ReadAsTheyAreAtAnyPlace) {
  const TestFile file = small_model()[4];
  const std::uint64_t inode = weights();
  const std::uint64_t handle = open(inode);
  ASSERT_EQ(kernel_.getattr(inode).as<fuse_attr_out>().attr.size, file.bytes.size());
  for (const std::uint64_t offset :
       {0, 1, 63, 64, 65, 4095, 65'535, 65'536, 100'000, 100'064, 100'065, 200'000})
    for (const std::uint32_t size : {1u, 4096u, 131'072u}) {
      const Reply reply = kernel_.read(inode, handle, offset, size);
      EXPECT_EQ(reply.errnum, 0);
      const std::string due = offset < file.bytes.size() ? file.bytes.substr(offset, size) : std::string();
      EXPECT_TRUE(reply.bytes == due) << offset << " " << size;
    }
}

TEST_F(FilesOfADevice, SegmentsInSeveralSlabsAreOneFile) {
  ASSERT_GT(entry_->manifest().slab_count(), 1u);
  for (const TestFile& file : small_model()) {
    const std::uint64_t inode = kernel_.walk(base() + "/" + file.name);
    const std::uint64_t handle = open(inode);
    EXPECT_TRUE(kernel_.read(inode, handle, 0, 150'000).bytes == file.bytes) << file.name;
  }
}

TEST_F(FilesOfADevice, TensorsAreTheirRuns) {
  const TestFile file = small_model()[3];
  const std::uint64_t inode = tensor("a%2Fb%25c");
  ASSERT_NE(inode, 0u);
  const std::uint64_t handle = open(inode);
  EXPECT_TRUE(kernel_.read(inode, handle, 0, 100'000).bytes == file.bytes.substr(5064, 5000));
  EXPECT_TRUE(kernel_.read(inode, handle, 4990, 100).bytes == file.bytes.substr(10'054, 10));
  EXPECT_EQ(kernel_.read(inode, handle, 5000, 100).bytes, "");
}

TEST_F(FilesOfADevice, AreNotPassedThrough) {
  FakeBackingRegistry registry;
  passthrough_.try_out(registry, 0);
  const std::uint32_t flags = kernel_.open(weights()).as<fuse_open_out>().open_flags;
  EXPECT_NE(flags & FOPEN_DIRECT_IO, 0u);
  EXPECT_EQ(flags & kOpenPassthrough, 0u);
#if WCACHE_HAVE_PASSTHROUGH
  const std::uint64_t config = kernel_.walk(base() + "/config.json");
  EXPECT_NE(kernel_.open(config).as<fuse_open_out>().open_flags & kOpenPassthrough, 0u);
#endif
}

TEST_F(FilesOfADevice, ASlowDaemonHoldsUpNobodyElse) {
  const TestFile file = small_model()[4];
  const std::uint64_t inode = weights();
  const std::uint64_t handle = open(inode);
  daemon_.set(Mode::hold);
  std::map<std::uint64_t, std::uint64_t> offsets;
  for (std::uint64_t offset = 0; offset < 90'000; offset += 10'000)
    offsets[send_read(inode, handle, offset, 10'000)] = offset;
  EXPECT_TRUE(daemon_.wait_asked(4));
  EXPECT_EQ(kernel_.getattr(FUSE_ROOT_ID).errnum, 0);
  const std::uint64_t config = kernel_.walk(base() + "/config.json");
  EXPECT_EQ(kernel_.read(config, open(config), 0, 1000).bytes, small_model()[0].bytes);
  daemon_.set(Mode::serve);
  while (!offsets.empty()) {
    const std::optional<FakeKernel::Late> late = kernel_.receive(10'000);
    ASSERT_TRUE(late && offsets.contains(late->unique));
    EXPECT_TRUE(late->reply.bytes == file.bytes.substr(offsets[late->unique], 10'000));
    offsets.erase(late->unique);
  }
}

TEST_F(FilesOfADevice, AReadThatDoesNotEndInTimeIsNeverAnswered) {
  const std::uint64_t inode = weights();
  const std::uint64_t handle = open(inode);
  daemon_.set(Mode::hold);
  send_read(inode, handle, 0, 1000);
  EXPECT_TRUE(daemon_.wait_asked(1));
  EXPECT_FALSE(fs_.end_device_reads(std::chrono::milliseconds(1)));
  daemon_.set(Mode::serve);
  EXPECT_TRUE(fs_.end_device_reads(std::chrono::seconds(10))) << "the daemon has answered by now, and";
  EXPECT_FALSE(kernel_.receive(0)) << "nobody was told";
  EXPECT_EQ(kernel_.read(inode, handle, 0, 1000).errnum, EIO);
}

TEST(InFlightTest, TheEndWaitsForAnAnswerThatIsBeingGiven) {
  InFlight flights;
  std::atomic<bool> giving = false, ended = false, go_on = false;
  std::jthread giver([&, counted = flights.begin()] {
    EXPECT_TRUE(counted->give([&] {
      giving = true;
      while (!go_on) std::this_thread::yield();
      EXPECT_FALSE(ended);
    }));
  });
  while (!giving) std::this_thread::yield();
  std::jthread closer([&] {
    flights.close(std::chrono::milliseconds(0));
    ended = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  go_on = true;
  closer.join();
  giver.join();
  EXPECT_FALSE(flights.begin()->give([] { FAIL(); }));
}

TEST_F(FilesOfADevice, WhateverTheDaemonDoesIsEioOrTheRightBytes) {
  const TestFile file = small_model()[4];
  const std::uint64_t inode = weights();
  const std::uint64_t handle = open(inode);
  for (const Mode mode : {Mode::hang_up, Mode::garbage, Mode::stray, Mode::little, Mode::refuse}) {
    daemon_.set(mode);
    EXPECT_EQ(kernel_.read(inode, handle, 0, 1000).errnum, EIO) << static_cast<int>(mode);
    daemon_.set(Mode::serve);
    EXPECT_TRUE(kernel_.read(inode, handle, 0, 1000).bytes == file.bytes.substr(0, 1000));
  }
  daemon_.end();
  EXPECT_EQ(kernel_.read(inode, handle, 0, 1000).errnum, EIO);
  const std::uint64_t config = kernel_.walk(base() + "/config.json");
  EXPECT_EQ(kernel_.read(config, open(config), 0, 1000).bytes, small_model()[0].bytes);
}

TEST_F(FilesOfADevice, ReadsThatWaitGetEioWhenTheDaemonIsLost) {
  const std::uint64_t inode = weights();
  const std::uint64_t handle = open(inode);
  daemon_.set(Mode::hold);
  for (int i = 0; i < 7; ++i) send_read(inode, handle, 0, 1000);
  EXPECT_TRUE(daemon_.wait_asked(4));
  entry_->parts().front()->lose_daemon();
  for (int i = 0; i < 7; ++i) {
    const std::optional<FakeKernel::Late> late = kernel_.receive(10'000);
    ASSERT_TRUE(late);
    EXPECT_EQ(late->reply.errnum, EIO);
  }
  EXPECT_EQ(kernel_.read(inode, handle, 0, 1000).errnum, EIO);
  EXPECT_EQ(kernel_.read(inode, handle, 200'000, 1000).errnum, 0)
      << "beyond the end there is nothing to ask for";
}

TEST_F(FilesOfADevice, AnotherDeviceWithTheSameFileIsReadInstead) {
  TestEntryOptions options;
  options.memfd = true;
  options.device = TestDevice{};
  options.rank = 1;
  ReadingDaemon second(make_test_entry(small_model(), options));
  entry_ = *Entry::make({daemon_.part(), second.part()}, 1001);
  tree_.publish(entry_);
  const std::uint64_t inode = weights();
  const std::uint64_t handle = open(inode);
  const TestFile file = small_model()[4];
  EXPECT_TRUE(kernel_.read(inode, handle, 0, 1000).bytes == file.bytes.substr(0, 1000));
  EXPECT_EQ(second.connections(), 0u);
  entry_->parts()[0]->lose_daemon();
  EXPECT_TRUE(kernel_.read(inode, handle, 7, 1000).bytes == file.bytes.substr(7, 1000));
  const std::uint64_t lm_head = tensor("lm_head.weight");
  EXPECT_TRUE(kernel_.read(lm_head, open(lm_head), 0, 1000).bytes == file.bytes.substr(64, 1000));
  entry_->parts()[1]->lose_daemon();
  EXPECT_EQ(kernel_.read(inode, handle, 0, 1000).errnum, EIO);
}

TEST_F(FilesOfADevice, HandlesAreForTheOwnerAlone) {
  const std::uint64_t inode = weights();
  const auto listed = [&] {
    return kernel_.listxattr(inode, 65'536).bytes.find("ipc_handle") != std::string::npos;
  };
  const auto handle = [&] { return kernel_.getxattr(inode, "user.wcache.ipc_handle.0", 1000); };
  for (const uid_t stranger : {uid_t{0}, uid_t{1002}}) {
    kernel_.ask_as(stranger);
    EXPECT_FALSE(listed());
    EXPECT_EQ(handle().errnum, EACCES);
    EXPECT_EQ(kernel_.getxattr(inode, "user.wcache.ipc_kind", 1000).bytes, "cuda-vmm");
  }
  kernel_.ask_as(kOwner);
  EXPECT_TRUE(listed());
  EXPECT_EQ(handle().bytes, "slab=0 socket=" + daemon_.socket());
  EXPECT_EQ(kernel_.getxattr(inode, "user.wcache.ipc_handle.0", 3).errnum, ERANGE);
}

}  // namespace
}  // namespace wcache

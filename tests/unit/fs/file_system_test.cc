#include "fs/file_system.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/null_sink.h>

#include <atomic>
#include <nlohmann/json.hpp>

#include "fs/texts.h"
#include "tests/unit/fs/fake_backing.h"
#include "tests/unit/fs/fake_kernel.h"
#include "tests/unit/fs/part_of.h"

namespace wcache {
namespace {

using namespace test;
using testing::UnorderedElementsAre;
using Reply = FakeKernel::Reply;

class SessionOverASocket : public testing::Test {
 protected:
  void SetUp() override {
    entry_ = entry_of(small_model());
    tree_.publish(entry_);
  }
  /// As a server does: nobody answers requests any more when the session goes.
  void TearDown() override {
    status_blocked_ = false;
    status_.stop();
  }
  std::string base() const { return "target/" + entry_->directory_name(); }
  std::uint64_t open(std::uint64_t inode) { return kernel_.open(inode).as<fuse_open_out>().fh; }

  std::atomic<bool> status_blocked_ = false;
  std::atomic<bool> status_broken_ = false;
  spdlog::logger log_{"test", std::make_shared<spdlog::sinks::null_sink_mt>()};
  Tree tree_{[] { return std::int64_t{1'000'000'000}; }};
  OpenFiles files_{[] { return 50.0; }};
  Passthrough passthrough_;
  StatusThread status_{[this] {
    while (status_blocked_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (status_broken_) throw std::runtime_error("broken");
    return std::string("{\"node\": 1}\n");
  }};
  MappingScan mapped_;
  FileSystem fs_{{1001, 1002, "/mnt/wcache", 7'000'000'000}, tree_, files_, passthrough_, status_,
                 [this](const Entry&) { return mapped_; },   log_};
  FakeKernel kernel_{fs_};
  std::shared_ptr<Entry> entry_;
};

TEST_F(SessionOverASocket, InitAgreesOnWhatWeRelyOn) {
  const std::uint32_t flags = kernel_.init().flags;
  EXPECT_TRUE(fs_.initialised());
  for (const std::uint32_t wanted : {FUSE_ASYNC_READ, FUSE_PARALLEL_DIROPS, FUSE_DO_READDIRPLUS,
                                     FUSE_READDIRPLUS_AUTO, FUSE_CACHE_SYMLINKS, FUSE_EXPLICIT_INVAL_DATA})
    EXPECT_NE(flags & wanted, 0u) << wanted;
  for (const std::uint32_t unwanted : {FUSE_AUTO_INVAL_DATA, FUSE_SPLICE_READ, FUSE_SPLICE_WRITE})
    EXPECT_EQ(flags & unwanted, 0u) << unwanted;
  EXPECT_EQ(kernel_.init().max_background, 64u);
#if WCACHE_HAVE_PASSTHROUGH
  EXPECT_EQ(kernel_.init().flags2 & (kInitFlags2DirectIoAllowMmap | kInitFlags2Passthrough),
            kInitFlags2DirectIoAllowMmap | kInitFlags2Passthrough);
#endif
}

TEST_F(SessionOverASocket, LookupFindsAndMisses) {
  const Reply hit = kernel_.lookup(kernel_.walk(base()), "config.json");
  ASSERT_EQ(hit.errnum, 0);
  const auto entry = hit.as<fuse_entry_out>();
  EXPECT_EQ(entry.attr.ino, entry.nodeid);
  EXPECT_EQ(entry.attr.size, small_model()[0].bytes.size());
  EXPECT_EQ(entry.attr.mode, S_IFREG | 0444u);
  EXPECT_EQ(entry.attr.uid, 1001u);
  EXPECT_EQ(entry.attr.gid, 1002u);
  EXPECT_GT(entry.entry_valid, 86'400u);
  EXPECT_GT(entry.attr_valid, 86'400u);

  // Absent for ever below an entry; soon perhaps there beside the entries.
  const Reply miss = kernel_.lookup(kernel_.walk(base()), "adapter_config.json");
  EXPECT_EQ(miss.errnum, 0);
  EXPECT_EQ(miss.as<fuse_entry_out>().nodeid, 0u);
  EXPECT_GT(miss.as<fuse_entry_out>().entry_valid, 86'400u);
  EXPECT_EQ(kernel_.lookup(kernel_.walk("target"), "0123").errnum, ENOENT);
  EXPECT_EQ(kernel_.lookup(kernel_.walk(base() + "/config.json"), "x").errnum, 0);
  EXPECT_EQ(kernel_.lookup(999'999, "x").errnum, ESTALE);
}

TEST_F(SessionOverASocket, GetattrOfEveryNode) {
  EXPECT_EQ(kernel_.getattr(FUSE_ROOT_ID).as<fuse_attr_out>().attr.mode, S_IFDIR | 0555u);
  EXPECT_LE(kernel_.getattr(FUSE_ROOT_ID).as<fuse_attr_out>().attr_valid, 1u);
  const auto status = kernel_.getattr(kernel_.walk(base() + "/.wcache/status.json")).as<fuse_attr_out>();
  EXPECT_EQ(status.attr_valid, 0u);
  EXPECT_EQ(status.attr.size, entry_status_text(*entry_, nullptr, {}, "/mnt/wcache").size());
  EXPECT_EQ(kernel_.getattr(0xFFFFFFFF).errnum, ESTALE);
}

TEST_F(SessionOverASocket, ReaddirWithAndWithoutAttributesInBuffersOfAnySize) {
  const std::uint64_t inode = kernel_.walk(base());
  for (const bool plus : {false, true})
    for (const std::uint32_t size : {300u, 512u, 65'536u})
      EXPECT_THAT(
          kernel_.list(inode, size, plus),
          UnorderedElementsAre(".", "..", ".wcache", "config.json", "empty.txt", "sub",
                               "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"));
  EXPECT_EQ(kernel_.open(kernel_.walk(base() + "/config.json"), 0, true).errnum, ENOTDIR);
  EXPECT_EQ(kernel_.read(inode, 4242, 0, 100, FUSE_READDIR).errnum, EBADF);
}

TEST_F(SessionOverASocket, AListingIsOfTheTimeItWasOpened) {
  const std::uint64_t inode = kernel_.walk("target");
  const std::uint64_t handle = kernel_.open(inode, 0, true).as<fuse_open_out>().fh;
  tree_.withdraw(Role::target, entry_->fingerprint());
  const Reply rows = kernel_.read(inode, handle, 0, 4096, FUSE_READDIR);
  EXPECT_NE(rows.bytes.find(entry_->directory_name()), std::string::npos);
  EXPECT_EQ(kernel_.list(inode, 4096, false), (std::vector<std::string>{".", "..", "by-name"}));
}

TEST_F(SessionOverASocket, DirectoriesOfEntriesAreCachedByTheKernel) {
  const std::uint32_t cached = FOPEN_CACHE_DIR | FOPEN_KEEP_CACHE;
  EXPECT_EQ(kernel_.open(kernel_.walk(base()), 0, true).as<fuse_open_out>().open_flags & cached, cached);
  EXPECT_EQ(kernel_.open(kernel_.walk("target"), 0, true).as<fuse_open_out>().open_flags & cached, 0u);
}

TEST_F(SessionOverASocket, FilesAreOpenedReadAndReleased) {
  for (const TestFile& file : small_model()) {
    const std::uint64_t inode = kernel_.walk(base() + "/" + file.name);
    const Reply opened = kernel_.open(inode);
    ASSERT_EQ(opened.errnum, 0) << file.name;
    EXPECT_NE(opened.as<fuse_open_out>().open_flags & FOPEN_NOFLUSH, 0u);
    const std::uint64_t handle = opened.as<fuse_open_out>().fh;
    EXPECT_TRUE(kernel_.read(inode, handle, 0, 200'000).bytes == file.bytes) << file.name;
    if (file.bytes.size() > 10) {
      EXPECT_EQ(kernel_.read(inode, handle, 3, 5).bytes, file.bytes.substr(3, 5));
    }
    EXPECT_EQ(kernel_.read(inode, handle, file.bytes.size(), 10).bytes, "");
    EXPECT_EQ(kernel_.read(inode, handle, std::uint64_t{1} << 60, 10).bytes, "");
    EXPECT_EQ(kernel_.release(inode, handle).errnum, 0);
    EXPECT_EQ(kernel_.read(inode, handle, 0, 10).errnum, EBADF);
  }
  EXPECT_EQ(files_.size(), 0u);
}

TEST_F(SessionOverASocket, GeneratedFilesAreConsistentWithTheirSizes) {
  for (const std::string& path :
       {std::string("README"), base() + "/.wcache/fingerprint.json", base() + "/.wcache/manifest",
        base() + "/.wcache/manifest.json", base() + "/.wcache/tensors/lm_head.weight"}) {
    const std::uint64_t inode = kernel_.walk(path);
    const std::uint64_t size = kernel_.getattr(inode).as<fuse_attr_out>().attr.size;
    EXPECT_GT(size, 0u) << path;
    EXPECT_EQ(kernel_.read(inode, open(inode), 0, 300'000).bytes.size(), size) << path;
  }
}

TEST_F(SessionOverASocket, WritingIsRefused) {
  const std::uint64_t inode = kernel_.walk(base() + "/config.json");
  EXPECT_EQ(kernel_.open(inode, O_WRONLY).errnum, EROFS);
  EXPECT_EQ(kernel_.open(inode, O_RDWR).errnum, EROFS);
  EXPECT_EQ(kernel_.open(inode, O_RDONLY | O_TRUNC).errnum, EROFS);
  EXPECT_EQ(kernel_.open(kernel_.walk(base())).errnum, EISDIR);
  const std::string name("new\0", 4);
  fuse_mkdir_in mkdir{};
  EXPECT_EQ(kernel_.ask(FUSE_MKDIR, FUSE_ROOT_ID, std::string(FakeKernel::bytes_of(mkdir)) + name).errnum,
            EROFS);
  EXPECT_EQ(kernel_.ask(FUSE_UNLINK, FUSE_ROOT_ID, name).errnum, EROFS);
  EXPECT_EQ(kernel_.ask(FUSE_RMDIR, FUSE_ROOT_ID, name).errnum, EROFS);
  fuse_setattr_in setattr{};
  EXPECT_EQ(kernel_.ask(FUSE_SETATTR, inode, FakeKernel::bytes_of(setattr)).errnum, EROFS);
  EXPECT_EQ(kernel_.ask(FUSE_REMOVEXATTR, inode, name).errnum, EROFS);
  fuse_access_in access{W_OK, 0};
  EXPECT_EQ(kernel_.ask(FUSE_ACCESS, inode, FakeKernel::bytes_of(access)).errnum, EROFS);
  access.mask = R_OK;
  EXPECT_EQ(kernel_.ask(FUSE_ACCESS, inode, FakeKernel::bytes_of(access)).errnum, 0);
}

TEST_F(SessionOverASocket, AttributesInThreeSteps) {
  const std::uint64_t inode = kernel_.walk(base());
  const Reply size = kernel_.getxattr(inode, "user.wcache.fingerprint", 0);
  EXPECT_EQ(size.as<fuse_getxattr_out>().size, 32u);
  EXPECT_EQ(kernel_.getxattr(inode, "user.wcache.fingerprint", 31).errnum, ERANGE);
  EXPECT_EQ(kernel_.getxattr(inode, "user.wcache.fingerprint", 32).bytes, entry_->directory_name());
  EXPECT_EQ(kernel_.getxattr(inode, "user.wcache.quantization", 100).errnum, ENODATA);
  EXPECT_EQ(kernel_.getxattr(inode, "security.selinux", 100).errnum, ENODATA);
  EXPECT_EQ(kernel_.getxattr(999'999, "security.selinux", 100).errnum,
            ENODATA);  // without a look at the node
  EXPECT_EQ(kernel_.getxattr(999'999, "user.wcache.role", 100).errnum, ESTALE);

  const std::uint32_t total = kernel_.listxattr(inode, 0).as<fuse_getxattr_out>().size;
  EXPECT_EQ(kernel_.listxattr(inode, total - 1).errnum, ERANGE);
  const std::string names = kernel_.listxattr(inode, total).bytes;
  EXPECT_EQ(names.size(), total);
  EXPECT_TRUE(names.starts_with(std::string_view("user.wcache.role\0", 17)));
  EXPECT_EQ(names.back(), '\0');
  EXPECT_EQ(kernel_.listxattr(kernel_.walk(base() + "/config.json"), 0).as<fuse_getxattr_out>().size, 0u);
}

TEST_F(SessionOverASocket, HoldersAreOpenFilesAndMappings) {
  const std::uint64_t inode = kernel_.walk(base());
  const auto count = [&] { return kernel_.getxattr(inode, "user.wcache.holders", 100).bytes; };
  const auto listed = [&] {
    const std::uint64_t status = kernel_.walk(base() + "/.wcache/status.json");
    const std::uint64_t handle = open(status);
    const std::string text = kernel_.read(status, handle, 0, 65'536).bytes;
    kernel_.release(status, handle);
    std::vector<int> pids;
    const nlohmann::json status_json = nlohmann::json::parse(text);
    for (const auto& holder : status_json["holders"]) pids.push_back(holder["pid"]);
    return pids;
  };
  EXPECT_EQ(count(), "0");
  mapped_.holders = {{4711, "engine", 0}, {getpid(), "fs_test", 0}};
  EXPECT_EQ(count(), "2");
  open(kernel_.walk(base() + "/config.json"));
  EXPECT_EQ(count(), "2");  // the same process twice
  EXPECT_THAT(listed(), UnorderedElementsAre(4711, getpid()));
}

TEST_F(SessionOverASocket, LinksLeadToTheirEntry) {
  const std::uint64_t inode = kernel_.walk("target/by-name/tiny");
  EXPECT_EQ(kernel_.ask(FUSE_READLINK, inode).bytes, "../" + entry_->directory_name());
  EXPECT_EQ(kernel_.ask(FUSE_READLINK, kernel_.walk("target")).errnum, EINVAL);
}

TEST_F(SessionOverASocket, ForgetStormsHaveNoReply) {
  fuse_forget_in one{1};
  for (std::uint64_t i = 0; i < 500; ++i) kernel_.send(FUSE_FORGET, i, FakeKernel::bytes_of(one));
  fuse_batch_forget_in batch{};
  batch.count = 100;
  std::string body(FakeKernel::bytes_of(batch));
  for (std::uint64_t i = 0; i < batch.count; ++i) {
    const fuse_forget_one row{i * 31, 1'000'000};
    body.append(FakeKernel::bytes_of(row));
  }
  for (int i = 0; i < 50; ++i) kernel_.send(FUSE_BATCH_FORGET, 0, body);
  EXPECT_NE(kernel_.walk(base() + "/config.json"), 0u);
  EXPECT_EQ(kernel_.receive(10), std::nullopt);
}

TEST_F(SessionOverASocket, StatusIsMadeElsewhereWhileOthersAreServed) {
  const std::uint64_t inode = kernel_.walk("status.json");
  status_blocked_ = true;
  fuse_open_in in{};
  const std::uint64_t unique = kernel_.send(FUSE_OPEN, inode, FakeKernel::bytes_of(in));
  EXPECT_EQ(kernel_.receive(20), std::nullopt);
  EXPECT_EQ(kernel_.getattr(FUSE_ROOT_ID).errnum, 0);
  status_blocked_ = false;
  const std::optional<FakeKernel::Late> late = kernel_.receive(5000);
  ASSERT_TRUE(late);
  EXPECT_EQ(late->unique, unique);
  const auto opened = late->reply.as<fuse_open_out>();
  EXPECT_NE(opened.open_flags & FOPEN_DIRECT_IO, 0u);
  EXPECT_EQ(kernel_.read(inode, opened.fh, 0, 100).bytes, "{\"node\": 1}\n");
  EXPECT_EQ(kernel_.getattr(inode).as<fuse_attr_out>().attr.size, 12u);
  status_broken_ = true;
  EXPECT_EQ(kernel_.open(inode).errnum, EIO);
}

TEST_F(SessionOverASocket, AnEntryThatIsGoneServesItsOpenFilesOnly) {
  const TestFile file = small_model()[4];
  const std::uint64_t directory = kernel_.walk(base());
  const std::uint64_t inode = kernel_.walk(base() + "/" + file.name);
  const std::uint64_t handle = open(inode);
  const std::weak_ptr<Entry> weak = entry_;
  tree_.withdraw(Role::target, entry_->fingerprint());
  entry_.reset();
  EXPECT_TRUE(kernel_.read(inode, handle, 0, 200'000).bytes == file.bytes);
  EXPECT_EQ(kernel_.getattr(inode, handle).as<fuse_attr_out>().attr.size, file.bytes.size());
  EXPECT_EQ(kernel_.getattr(inode).errnum, ESTALE);
  EXPECT_EQ(kernel_.open(inode).errnum, ESTALE);
  EXPECT_EQ(kernel_.lookup(directory, "config.json").errnum, ESTALE);
  EXPECT_FALSE(weak.expired());
  EXPECT_EQ(kernel_.release(inode, handle).errnum, 0);
  EXPECT_EQ(kernel_.getattr(FUSE_ROOT_ID).errnum, 0);  // the release's handler has returned
  EXPECT_TRUE(weak.expired());
}

TEST_F(SessionOverASocket, PassthroughGivesOneBackingIdForAllOpensOfAnInode) {
#if WCACHE_HAVE_PASSTHROUGH
  struct OpenOut {
    std::uint64_t fh;
    std::uint32_t open_flags;
    std::int32_t backing_id;
  };
  FakeBackingRegistry registry;
  passthrough_.try_out(registry, 0);
  const std::uint64_t inode = kernel_.walk(base() + "/config.json");
  const auto first = kernel_.open(inode).as<OpenOut>(), second = kernel_.open(inode).as<OpenOut>();
  EXPECT_NE(first.open_flags & kOpenPassthrough, 0u);
  EXPECT_EQ(first.open_flags & (FOPEN_KEEP_CACHE | FOPEN_DIRECT_IO), 0u);
  EXPECT_GT(first.backing_id, 0);
  EXPECT_EQ(second.backing_id, first.backing_id);
  kernel_.release(inode, first.fh);
  EXPECT_EQ(registry.ids.size(), 1u);
  kernel_.release(inode, second.fh);
  EXPECT_EQ(registry.ids.size(), 0u);

  registry.refuse_with = EMFILE;
  const auto refused = kernel_.open(inode).as<OpenOut>();
  EXPECT_EQ(refused.open_flags & kOpenPassthrough, 0u);
  EXPECT_NE(refused.open_flags & FOPEN_DIRECT_IO, 0u);
  EXPECT_EQ(kernel_.read(inode, refused.fh, 0, 1000).bytes, small_model()[0].bytes);
#else
  GTEST_SKIP() << "built against a libfuse without passthrough";
#endif
}

TEST_F(SessionOverASocket, StatfsCountsWhatIsShown) {
  const auto st = kernel_.ask(FUSE_STATFS, FUSE_ROOT_ID).as<fuse_statfs_out>().st;
  EXPECT_GE(st.blocks * st.bsize, entry_->nbytes());
  EXPECT_EQ(st.bfree, 0u);
  EXPECT_EQ(st.namelen, 255u);
}

}  // namespace
}  // namespace wcache

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

#include "core/digest.h"
#include "daemon/fill/disk.h"
#include "daemon/fill/fill.h"
#include "daemon/fill/pread_disk.h"
#include "daemon/fill/uring_disk.h"
#include "tests/unit/daemon/fill/image_memory.h"

namespace wcache {
namespace {

using namespace std::chrono_literals;
using testing::ImageMemory;
using testing::random_bytes;
using testing::whole_image;

/// Files in a directory of their own on a file system of this machine.
class MachineDiskTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "wcache-fill-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    directory_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  void add(EntryPlan& plan, const std::string& name, const std::vector<std::byte>& bytes) {
    SourceFile source;
    source.name = name;
    source.path = directory_ / name;
    std::ofstream(source.path, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    struct stat st {};
    ASSERT_EQ(stat(source.path.c_str(), &st), 0);
    source.identity = FileIdentity::of(st);
    plan.images.push_back(whole_image(source, static_cast<std::uint32_t>(plan.sources.size())));
    plan.sources.push_back(std::move(source));
  }

  /// Three files of which one is cut up and moved by an odd distance.
  EntryPlan sample() {
    EntryPlan plan;
    add(plan, "large", random_bytes(5'000'001, 1));
    add(plan, "small", random_bytes(300, 2));
    add(plan, "empty", {});
    ImagePlan moved;
    moved.name = "moved";
    moved.head = "123";
    moved.pieces = {{3, 0, 1'000'001, 3'500'000}, {3'500'003, 1, 5, 200}};
    moved.nbytes = 3'500'203;
    moved.segments = {{0, 3}, {3, 3'500'000}, {3'500'003, 200}};
    plan.images.push_back(moved);
    return plan;
  }

  void expect_sample(const FillReport& report) {
    const auto large = random_bytes(5'000'001, 1);
    const auto small = random_bytes(300, 2);
    EXPECT_EQ(report.digests[0].file, file_digest(large));
    EXPECT_EQ(report.digests[1].file, file_digest(small));
    EXPECT_EQ(report.digests[2].file, file_digest({}));
    EXPECT_EQ(report.digests[3].segments[1], segment_digest(std::span(large).subspan(1'000'001, 3'500'000)));
    EXPECT_EQ(report.digests[3].segments[2], segment_digest(std::span(small).subspan(5, 200)));
  }

  std::filesystem::path directory_;
};

TEST_F(MachineDiskTest, EveryWayReadsTheSameBytes) {
  const EntryPlan plan = sample();
  for (const char* word : {"io_uring-direct", "io_uring-buffered", "threads"}) {
    SCOPED_TRACE(word);
    const MachineDisk machine = open_machine_disk(DiskOptions::from_word(word).value());
    ImageMemory memory(plan);
    FillOptions options;
    options.note = machine.note;
    const auto report = fill(plan, memory.spans(), *machine.disk, options);
    ASSERT_TRUE(report) << report.error().message;
    expect_sample(*report);
    EXPECT_EQ(report->note.empty(), report->path == FillPath::io_uring_direct) << report->note;
    if (to_string(report->path) != word) {
      // A machine without io_uring, or a file system without direct reads: said, and served all the same.
      RecordProperty(word, report->note);
      EXPECT_NE(report->note, "");
    }
  }
}

TEST_F(MachineDiskTest, AFileThatIsReplacedIsStale) {
  const EntryPlan plan = sample();
  const auto path = directory_ / "small";
  const auto bytes = random_bytes(300, 3);
  std::filesystem::remove(path);
  std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(bytes.data()), 300);
  const MachineDisk machine = open_machine_disk();
  ImageMemory memory(plan);
  const auto report = fill(plan, memory.spans(), *machine.disk);
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().reason, Reason::stale);
  EXPECT_THAT(report.error().message, ::testing::HasSubstr(path.string()));
}

TEST_F(MachineDiskTest, OnlyRegularFilesAreOpened) {
  const auto fifo = directory_ / "fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  const auto disk = open_pread_disk();
  EXPECT_EQ(disk->open(fifo, Access::buffered).error().reason, Reason::invalid);
  EXPECT_EQ(disk->open(directory_ / "none", Access::buffered).error().reason, Reason::not_found);
}

TEST_F(MachineDiskTest, AQueueWaitsNoLongerThanToldAndReadsShortAtTheEnd) {
  auto disk = open_uring_disk();
  if (!disk) GTEST_SKIP() << "no io_uring here: " << disk.error().message;
  EntryPlan plan = sample();
  auto file = (*disk)->open(plan.sources[0].path, Access::buffered);
  ASSERT_TRUE(file);
  auto queue = (*disk)->queue(4);
  ASSERT_TRUE(queue);
  std::vector<std::byte> into(4096);
  std::array<ReadCompletion, 4> out;
  const auto nothing = (*queue)->reap(out, 10ms);
  ASSERT_TRUE(nothing);
  EXPECT_EQ(*nothing, 0u);
  ASSERT_TRUE((*queue)->submit({.file = file->get(), .offset = 4'999'000, .into = into, .tag = 7}));
  const auto one = (*queue)->reap(out, 1s);
  ASSERT_TRUE(one);
  ASSERT_EQ(*one, 1u);
  EXPECT_EQ(out[0].tag, 7u);
  EXPECT_EQ(out[0].result, 1001);
  (*queue)->cancel();
  EXPECT_EQ((*queue)->reap(out, 10ms).value(), 0u);
}

TEST(DiskOptions, WordsOfTheEnvironment) {
  EXPECT_TRUE(DiskOptions::from_word("")->io_uring);
  EXPECT_TRUE(DiskOptions::from_word("io_uring-direct")->direct);
  EXPECT_FALSE(DiskOptions::from_word("io_uring-buffered")->direct);
  EXPECT_FALSE(DiskOptions::from_word("threads")->io_uring);
  EXPECT_EQ(DiskOptions::from_word("fast").error().reason, Reason::invalid);
}

}  // namespace
}  // namespace wcache

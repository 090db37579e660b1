#include "daemon/fill/fill.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <random>
#include <thread>

#include "daemon/fill/read_plan.h"
#include "tests/unit/daemon/fill/fake_disk.h"
#include "tests/unit/daemon/fill/image_memory.h"
#include "tests/unit/daemon/fill/random_draft.h"

namespace wcache {
namespace {

using namespace std::chrono_literals;
using testing::expected_image;
using testing::FakeDisk;
using ::testing::HasSubstr;
using testing::ImageMemory;
using testing::random_bytes;
using testing::whole_image;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

/// Source files of these sizes, each served byte for byte.
EntryPlan copy_plan(FakeDisk& disk, const std::vector<std::uint64_t>& sizes) {
  EntryPlan plan;
  for (std::uint32_t i = 0; i < sizes.size(); ++i) {
    plan.sources.push_back(disk.add("f" + std::to_string(i), random_bytes(sizes[i], i)));
    plan.images.push_back(whole_image(plan.sources.back(), i));
  }
  return plan;
}

void expect_filled(const EntryPlan& plan, FakeDisk& disk, const ImageMemory& memory,
                   const FillReport& report) {
  ASSERT_EQ(report.digests.size(), plan.images.size());
  for (std::size_t i = 0; i < plan.images.size(); ++i) {
    const std::vector<std::byte> expected = expected_image(plan, disk, i);
    const std::span<const std::byte> got = memory.spans()[i];
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), got.begin())) << plan.images[i].name;
    const auto rest = got.subspan(expected.size());
    EXPECT_TRUE(std::all_of(rest.begin(), rest.end(), [](std::byte b) { return b == std::byte{0}; }));
    EXPECT_EQ(report.digests[i].file, file_digest(expected, plan.images[i].segments));
    ASSERT_EQ(report.digests[i].segments.size(), plan.images[i].segments.size());
    for (std::size_t s = 0; s < plan.images[i].segments.size(); ++s) {
      const Segment& segment = plan.images[i].segments[s];
      EXPECT_EQ(report.digests[i].segments[s],
                segment_digest(std::span(expected).subspan(segment.offset, segment.nbytes)));
    }
  }
}

/// Images made of literal heads and of pieces of any size from anywhere in any source, cut into any segments.
class RandomPlan {
 public:
  explicit RandomPlan(std::uint64_t seed) : random_(seed) {}

  EntryPlan make(FakeDisk& disk) {
    EntryPlan plan;
    for (std::uint64_t i = 0, n = 1 + below(4); i < n; ++i)
      plan.sources.push_back(disk.add("s" + std::to_string(i), random_bytes(any_size(), random_())));
    for (std::uint32_t i = 0; i < plan.sources.size(); ++i)
      if (below(2) == 0) plan.images.push_back(whole_image(plan.sources[i], i));
    for (std::uint64_t i = 0, n = 1 + below(3); i < n; ++i) plan.images.push_back(patchwork(plan.sources));
    for (ImagePlan& image : plan.images) image.segments = segments(image.nbytes);
    return plan;
  }

 private:
  std::uint64_t below(std::uint64_t n) { return random_() % n; }

  std::uint64_t any_size() {
    switch (below(5)) {
      case 0:
        return below(5000);
      case 1:
        return below(3) * 4096;
      case 2:
        return below(3 * kMiB);
      case 3:
        return kChunk * (1 + below(2)) + below(3) - 1;
      default:
        return below(7 * kMiB);
    }
  }

  ImagePlan patchwork(const std::vector<SourceFile>& sources) {
    ImagePlan image;
    image.name = "patchwork";
    image.kind = FileKind::safetensors;
    image.head = std::string(below(2) == 0 ? 0 : below(10'000), 'h');
    image.nbytes = image.head.size();
    for (std::uint64_t i = 0, n = below(12); i < n; ++i) {
      const auto source = static_cast<std::uint32_t>(below(sources.size()));
      const std::uint64_t size = sources[source].identity.nbytes;
      if (size == 0) continue;
      std::uint64_t offset = below(size);
      if (below(3) == 0) offset = offset / 4096 * 4096;
      const std::uint64_t nbytes = below(2) == 0 ? size - offset : 1 + below(size - offset);
      image.pieces.push_back({image.nbytes, source, offset, nbytes});
      image.nbytes += nbytes;
    }
    return image;
  }

  std::vector<Segment> segments(std::uint64_t nbytes) {
    std::vector<Segment> out;
    for (std::uint64_t at = 0; at < nbytes;) {
      const std::uint64_t most = below(3) == 0 ? 3 * kMiB : 300'000;
      const std::uint64_t size = std::min(nbytes - at, 1 + below(most));
      out.push_back({at, size});
      at += size;
    }
    return out;
  }

  std::mt19937_64 random_;
};

TEST(Fill, AnyPlanInAnyOrderGivesTheSameBytesAndDigests) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    FakeDisk disk;
    disk.seed = seed;
    disk.direct_alignment = std::array<std::uint64_t, 4>{1, 512, 4096, 65536}[random() % 4];
    const EntryPlan plan = RandomPlan(seed).make(disk);
    ImageMemory memory(plan);
    std::atomic<std::uint64_t> calls = seed;
    disk.fault = [&calls](const std::string&, std::uint64_t,
                          std::uint64_t nbytes) -> std::optional<std::int64_t> {
      switch (calls++ % 7) {
        case 0:
          return -EINTR;
        case 1:
          return -EAGAIN;
        case 2:
          return static_cast<std::int64_t>((nbytes + 1) / 2);
        case 3:
          return nbytes > 8192 ? 8192 : static_cast<std::int64_t>(nbytes);
        default:
          return std::nullopt;
      }
    };
    FillOptions options;
    options.depth = 1 + static_cast<unsigned>(random() % 40);
    options.workers = 1 + static_cast<unsigned>(random() % 4);
    const auto report = fill(plan, memory.spans(), disk, options);
    ASSERT_TRUE(report) << report.error().message;
    expect_filled(plan, disk, memory, *report);
    EXPECT_EQ(report->path, FillPath::io_uring_direct);
    EXPECT_EQ(disk.misaligned, 0);
    EXPECT_LE(disk.most_in_flight, static_cast<int>(options.depth));
    EXPECT_EQ(disk.in_flight, 0);
  }
}

TEST(Fill, AHeadLongerThanAChunk) {
  FakeDisk disk;
  EntryPlan plan = copy_plan(disk, {5 * kMiB});
  plan.images[0].head = std::string(5 * kMiB + 3, 'h');
  plan.images[0].pieces[0].image_offset = plan.images[0].head.size();
  plan.images[0].nbytes += plan.images[0].head.size();
  plan.images[0].segments = {{0, 5 * kMiB + 3}, {5 * kMiB + 3, 5 * kMiB}};
  ImageMemory memory(plan);
  const auto report = fill(plan, memory.spans(), disk);
  ASSERT_TRUE(report) << report.error().message;
  expect_filled(plan, disk, memory, *report);
}

TEST(Fill, ManyReadsAreInFlightAcrossFiles) {
  FakeDisk disk;
  const EntryPlan plan = copy_plan(disk, std::vector<std::uint64_t>(40, 9000));
  ImageMemory memory(plan);
  FillOptions options;
  options.workers = 1;
  const auto report = fill(plan, memory.spans(), disk, options);
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(disk.most_in_flight, 32);
  expect_filled(plan, disk, memory, *report);
}

TEST(Fill, NothingToReadIsFilledAtOnce) {
  FakeDisk disk;
  EntryPlan plan = copy_plan(disk, {0});
  ImageMemory memory(plan);
  auto report = fill(plan, memory.spans(), disk);
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(report->digests[0].file, file_digest({}));
  plan = {};
  report = fill(plan, {}, disk);
  ASSERT_TRUE(report) << report.error().message;
}

TEST(Fill, ReadErrorNamesFileOffsetAndCause) {
  FakeDisk disk;
  const EntryPlan plan = copy_plan(disk, {3 * kMiB, 9 * kMiB});
  ImageMemory memory(plan);
  disk.fault = [](const std::string& path, std::uint64_t offset,
                  std::uint64_t) -> std::optional<std::int64_t> {
    if (path == "f1" && offset == 4 * kMiB) return -EIO;
    return std::nullopt;
  };
  const auto report = fill(plan, memory.spans(), disk);
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().reason, Reason::io);
  EXPECT_EQ(report.error().errnum, EIO);
  EXPECT_EQ(report.error().message, "reading f1 at byte 4194304: Input/output error");
  EXPECT_EQ(disk.in_flight, 0);
}

TEST(Fill, MissingFileIsNotFound) {
  FakeDisk disk;
  EntryPlan plan = copy_plan(disk, {100});
  plan.sources[0].path = "gone";
  ImageMemory memory(plan);
  const auto report = fill(plan, memory.spans(), disk);
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().reason, Reason::not_found);
  EXPECT_THAT(report.error().message, HasSubstr("gone"));
}

TEST(Fill, SourceThatChangedBeforeTheFillIsStale) {
  FakeDisk disk;
  const EntryPlan plan = copy_plan(disk, {5000});
  disk.file("f0").identity.inode += 1;
  disk.file("f0").identity.nbytes += 1;
  ImageMemory memory(plan);
  const auto report = fill(plan, memory.spans(), disk);
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().reason, Reason::stale);
  EXPECT_THAT(report.error().message,
              HasSubstr("f0 changed since it was looked at: size 5000 -> 5001, inode"));
}

TEST(Fill, SourceThatChangesDuringTheFillIsStale) {
  FakeDisk disk;
  const EntryPlan plan = copy_plan(disk, {5000, 3 * kMiB});
  FakeDisk::File& file = disk.file("f1");
  file.identity_after = file.identity;
  file.identity_after->mtime_ns += 1;
  file.identity_after->ctime_ns += 1;
  ImageMemory memory(plan);
  const auto report = fill(plan, memory.spans(), disk);
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().reason, Reason::stale);
  EXPECT_EQ(report.error().message, "f1 changed since it was looked at: mtime, ctime");
}

TEST(Fill, FileTruncatedUnderTheReadIsStale) {
  FakeDisk disk;
  const EntryPlan plan = copy_plan(disk, {5 * kMiB});
  FakeDisk::File& file = disk.file("f0");
  file.bytes.resize(3 * kMiB + 100);
  file.identity_after = file.identity;
  file.identity_after->nbytes = file.bytes.size();
  ImageMemory memory(plan);
  const auto began = std::chrono::steady_clock::now();
  const auto report = fill(plan, memory.spans(), disk);
  ASSERT_FALSE(report);
  EXPECT_LT(std::chrono::steady_clock::now() - began, FillOptions().drain_timeout);
  EXPECT_EQ(report.error().reason, Reason::stale);
  EXPECT_THAT(report.error().message, HasSubstr("size 5242880 -> 3145828"));
  EXPECT_THAT(report.error().message, HasSubstr("found at byte "));
}

TEST(Fill, FileThatEndsEarlyWithoutAChangeIsAnIoError) {
  FakeDisk disk;
  const EntryPlan plan = copy_plan(disk, {5 * kMiB});
  disk.file("f0").bytes.resize(3 * kMiB + 100);
  ImageMemory memory(plan);
  const auto report = fill(plan, memory.spans(), disk);
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().reason, Reason::io);
  EXPECT_THAT(report.error().message, HasSubstr("ends early"));
}

TEST(Fill, RememberedDigestThatDiffersIsStale) {
  FakeDisk disk;
  const EntryPlan plan = copy_plan(disk, {5000, 6000});
  ImageMemory memory(plan);
  FillOptions options;
  options.remembered = {file_digest(disk.file("f0").bytes), std::nullopt};
  EXPECT_TRUE(fill(plan, memory.spans(), disk, options));
  options.remembered[1] = options.remembered[0];
  const auto report = fill(plan, memory.spans(), disk, options);
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().reason, Reason::stale);
  EXPECT_THAT(report.error().message, HasSubstr("f1"));
}

TEST(Fill, FileThatCannotBeOpenedForDirectReadsIsReadThroughTheCacheAndDropped) {
  FakeDisk disk;
  disk.direct_open_errno = EINVAL;
  const EntryPlan plan = copy_plan(disk, {5 * kMiB, 77});
  ImageMemory memory(plan);
  const auto report = fill(plan, memory.spans(), disk);
  ASSERT_TRUE(report) << report.error().message;
  expect_filled(plan, disk, memory, *report);
  EXPECT_EQ(report->path, FillPath::io_uring_buffered);
  EXPECT_THAT(report->note, HasSubstr("f0: Invalid argument"));
  EXPECT_GE(disk.file("f0").drops, 3);
}

TEST(Fill, DirectReadThatIsRefusedGoesThroughTheCache) {
  FakeDisk disk;
  const EntryPlan plan = copy_plan(disk, {9 * kMiB + 5});
  ImageMemory memory(plan);
  std::atomic<int> refused = 0;
  disk.fault = [&refused](const std::string&, std::uint64_t, std::uint64_t) -> std::optional<std::int64_t> {
    if (refused++ < 4) return -EINVAL;
    return std::nullopt;
  };
  FillOptions options;
  options.workers = 1;
  options.depth = 4;
  const auto report = fill(plan, memory.spans(), disk, options);
  ASSERT_TRUE(report) << report.error().message;
  expect_filled(plan, disk, memory, *report);
  EXPECT_EQ(report->path, FillPath::io_uring_buffered);
  EXPECT_THAT(report->note, HasSubstr("direct read of f0 refused"));
}

TEST(Fill, ReadThatIsAlwaysRefusedIsAnError) {
  FakeDisk disk;
  const EntryPlan plan = copy_plan(disk, {5000});
  ImageMemory memory(plan);
  disk.fault = [](const std::string&, std::uint64_t, std::uint64_t) {
    return std::optional<std::int64_t>(-EINVAL);
  };
  const auto report = fill(plan, memory.spans(), disk);
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().errnum, EINVAL);
}

TEST(Fill, OtherErrorsOfOpenAreNotTriedBuffered) {
  FakeDisk disk;
  disk.direct_open_errno = EACCES;
  const EntryPlan plan = copy_plan(disk, {100});
  ImageMemory memory(plan);
  const auto report = fill(plan, memory.spans(), disk);
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().reason, Reason::denied);
}

TEST(Fill, BlockingDiskIsReportedAsThreads) {
  FakeDisk disk;
  disk.is_blocking = true;
  const EntryPlan plan = copy_plan(disk, std::vector<std::uint64_t>(20, 10'000));
  ImageMemory memory(plan);
  FillOptions options;
  options.note = "io_uring_setup: Operation not permitted";
  const auto report = fill(plan, memory.spans(), disk, options);
  ASSERT_TRUE(report) << report.error().message;
  expect_filled(plan, disk, memory, *report);
  EXPECT_EQ(to_string(report->path), "threads");
  EXPECT_EQ(report->note, options.note);
  EXPECT_EQ(disk.queues, 16u);
}

TEST(Fill, FewerQueuesThanWantedSuffice) {
  FakeDisk disk;
  disk.most_queues = 1;
  const EntryPlan plan = copy_plan(disk, {9 * kMiB});
  ImageMemory memory(plan);
  FillOptions options;
  options.workers = 4;
  auto report = fill(plan, memory.spans(), disk, options);
  ASSERT_TRUE(report) << report.error().message;
  expect_filled(plan, disk, memory, *report);
  disk.most_queues = 0;
  report = fill(plan, memory.spans(), disk, options);
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().errnum, ENOMEM);
}

/// A fault for the read at byte 2 MiB of f0 that never ends.
std::optional<std::int64_t> hang(const std::string& path, std::uint64_t offset, std::uint64_t) {
  if (path == "f0" && offset == 2 * kMiB) return FakeDisk::kNever;
  return std::nullopt;
}

TEST(Fill, ReadThatNeverEndsMeetsTheDeadline) {
  FakeDisk disk;
  const EntryPlan plan = copy_plan(disk, {9 * kMiB});
  ImageMemory memory(plan);
  disk.fault = hang;
  FillOptions options;
  options.stall_timeout = 100ms;
  const auto report = fill(plan, memory.spans(), disk, options);
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().reason, Reason::timeout);
  EXPECT_THAT(report.error().message, HasSubstr("f0 at byte 2097152"));
  EXPECT_EQ(disk.in_flight, 0);
}

TEST(Fill, ReadThatCannotBeCancelledIsGivenUpInBoundedTime) {
  FakeDisk disk;
  const EntryPlan plan = copy_plan(disk, {9 * kMiB});
  ImageMemory memory(plan);
  disk.fault = hang;
  disk.cancel_works = false;
  FillOptions options;
  options.stall_timeout = 100ms;
  options.drain_timeout = 100ms;
  const auto began = std::chrono::steady_clock::now();
  const auto report = fill(plan, memory.spans(), disk, options);
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().reason, Reason::timeout);
  EXPECT_LT(std::chrono::steady_clock::now() - began, 5s);
}

TEST(Fill, EndlessRetriesAreAStall) {
  FakeDisk disk;
  const EntryPlan plan = copy_plan(disk, {5000});
  ImageMemory memory(plan);
  disk.fault = [](const std::string&, std::uint64_t, std::uint64_t) {
    return std::optional<std::int64_t>(-EAGAIN);
  };
  FillOptions options;
  options.stall_timeout = 100ms;
  const auto report = fill(plan, memory.spans(), disk, options);
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().reason, Reason::timeout);
}

TEST(Fill, StopEndsItSoonWithNothingInFlight) {
  FakeDisk disk;
  const EntryPlan plan = copy_plan(disk, {9 * kMiB, 4 * kMiB});
  ImageMemory memory(plan);
  disk.fault = hang;
  std::stop_source stop;
  std::jthread stopper([&stop] {
    std::this_thread::sleep_for(50ms);
    stop.request_stop();
  });
  const auto began = std::chrono::steady_clock::now();
  const auto report = fill(plan, memory.spans(), disk, {}, {}, stop.get_token());
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().reason, Reason::timeout);
  EXPECT_THAT(report.error().message, HasSubstr("stopped"));
  EXPECT_LT(std::chrono::steady_clock::now() - began, 5s);
  EXPECT_EQ(disk.in_flight, 0);
}

TEST(Fill, ProgressGrowsToTheTotal) {
  FakeDisk disk;
  const EntryPlan plan = copy_plan(disk, {9 * kMiB, 100});
  ImageMemory memory(plan);
  disk.fault = [](const std::string&, std::uint64_t, std::uint64_t) -> std::optional<std::int64_t> {
    std::this_thread::sleep_for(2ms);
    return std::nullopt;
  };
  FillOptions options;
  options.progress_interval = 1ms;
  std::vector<FillProgress> seen;
  const auto thread = std::this_thread::get_id();
  const auto report = fill(plan, memory.spans(), disk, options, [&](const FillProgress& progress) {
    EXPECT_EQ(std::this_thread::get_id(), thread);
    seen.push_back(progress);
  });
  ASSERT_TRUE(report) << report.error().message;
  ASSERT_GE(seen.size(), 2u);
  for (std::size_t i = 1; i < seen.size(); ++i) EXPECT_GE(seen[i].filled, seen[i - 1].filled);
  EXPECT_EQ(seen.back().filled, plan.nbytes());
  EXPECT_EQ(seen.back().total, plan.nbytes());
  EXPECT_GT(seen.back().rate, 0);
}

TEST(Fill, PlansThatDoNotFitAreRefused) {
  FakeDisk disk;
  EntryPlan plan = copy_plan(disk, {5000});
  ImageMemory memory(plan);
  EXPECT_EQ(fill(plan, {}, disk).error().reason, Reason::internal);
  EntryPlan gap = plan;
  gap.images[0].segments = {{0, 10}, {20, 4980}};
  EXPECT_EQ(fill(gap, memory.spans(), disk).error().reason, Reason::internal);
  gap.images[0].segments = {{0, 10}};
  EXPECT_EQ(fill(gap, memory.spans(), disk).error().reason, Reason::internal);
}

}  // namespace
}  // namespace wcache

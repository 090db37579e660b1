#include "daemon/fill/read_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "core/image_hash.h"
#include "tests/unit/daemon/fill/fake_disk.h"
#include "tests/unit/daemon/fill/random_draft.h"

namespace wcache {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kPage = 4096;

EntryPlan plan_of(std::uint64_t source_nbytes, std::vector<Piece> pieces, std::string head = {}) {
  EntryPlan plan;
  SourceFile source;
  source.name = "source";
  source.identity.nbytes = source_nbytes;
  plan.sources.push_back(source);
  ImagePlan image;
  image.name = "image";
  image.head = std::move(head);
  image.nbytes = image.head.size();
  for (Piece& piece : pieces) {
    piece.image_offset = image.nbytes;
    image.nbytes += piece.nbytes;
  }
  image.pieces = std::move(pieces);
  plan.images.push_back(std::move(image));
  return plan;
}

ReadPlan reads_of(const EntryPlan& plan, std::uint64_t alignment) {
  const std::vector<std::uint64_t> alignments(plan.sources.size(), alignment);
  auto reads = plan_reads(plan, alignments);
  EXPECT_TRUE(reads) << reads.error().message;
  return std::move(*reads);
}

TEST(ReadPlan, AWholeFileIsReadInPlaceChunkByChunk) {
  const ReadPlan plan = reads_of(plan_of(5 * kMiB + 100, {{0, 0, 0, 5 * kMiB + 100}}), kPage);
  ASSERT_EQ(plan.reads.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(plan.reads[i].direct);
    EXPECT_EQ(plan.reads[i].offset, i * kChunk);
  }
  EXPECT_EQ(plan.reads[2].needed, kMiB + 100);
  EXPECT_EQ(plan.reads[2].nbytes, kMiB + kPage);
}

TEST(ReadPlan, WithoutAlignmentEveryByteIsReadInPlaceOnce) {
  const EntryPlan plan = plan_of(9 * kMiB, {{0, 0, 12'345, 3 * kMiB}, {0, 0, 7 * kMiB + 1, 99}}, "head");
  const ReadPlan reads = reads_of(plan, 1);
  for (const PlannedRead& read : reads.reads) EXPECT_TRUE(read.direct);
  EXPECT_EQ(reads.read_nbytes(), 3 * kMiB + 99);
}

TEST(ReadPlan, RaggedEdgesGoThroughABufferAndTheRestInPlace) {
  // The piece begins 100 bytes into a page of image and source alike, and ends within another.
  const EntryPlan plan = plan_of(9 * kMiB, {{0, 0, kPage + 100, kMiB}, {0, 0, 3, 5}}, std::string(100, 'h'));
  const ReadPlan reads = reads_of(plan, kPage);
  std::uint64_t in_place = 0;
  for (const PlannedRead& read : reads.reads)
    if (read.direct) in_place += read.needed;
  EXPECT_EQ(in_place, kMiB - kPage);
}

TEST(ReadPlan, AnImageThatEndsBeforeItsSourceStillEndsInPlace) {
  const ReadPlan reads = reads_of(plan_of(9 * kMiB, {{0, 0, 0, kPage + 1}}), kPage);
  ASSERT_EQ(reads.reads.size(), 1u);
  EXPECT_TRUE(reads.reads[0].direct);
  EXPECT_EQ(reads.reads[0].nbytes, 2 * kPage);
  EXPECT_EQ(reads.reads[0].needed, kPage + 1);
}

TEST(ReadPlan, ADraftReadsHardlyMoreThanItsBytes) {
  // Tensors of a draft: many small ones beside a few large ones, scattered over a source at odd offsets.
  std::vector<Piece> pieces;
  std::uint64_t at = 88'888;
  for (int layer = 0; layer < 3; ++layer) {
    for (int i = 0; i < 40; ++i) {
      const std::uint64_t nbytes = i % 10 == 0 ? 6 * kMiB + 10 : 2 * 7168;
      pieces.push_back({0, 0, at, nbytes});
      at += nbytes;
    }
    at += 100 * kMiB + 2;
  }
  std::reverse(pieces.begin(), pieces.end());
  const EntryPlan plan = plan_of(at, pieces, std::string(4'711, 'h'));
  const ReadPlan reads = reads_of(plan, kPage);
  const std::uint64_t wanted = plan.images[0].nbytes - 4'711;
  EXPECT_GE(reads.read_nbytes(), wanted);
  EXPECT_LE(reads.read_nbytes(), wanted + wanted / 20);
  for (const PlannedRead& read : reads.reads) EXPECT_LE(read.nbytes, kBounceNbytes);
}

TEST(ReadPlan, SmallNeighboursAreReadTogether) {
  std::vector<Piece> pieces;
  for (std::uint64_t i = 0; i < 100; ++i) pieces.push_back({0, 0, 10 * i + 1, 10});
  const ReadPlan reads = reads_of(plan_of(kMiB, pieces), kPage);
  ASSERT_EQ(reads.reads.size(), 1u);
  EXPECT_EQ(reads.reads[0].nbytes, kPage);
  EXPECT_EQ(reads.reads[0].needed, 1001u);
  EXPECT_EQ(reads.reads[0].landings, 100u);
}

TEST(ReadPlan, RefusesPlansThatDoNotFit) {
  const std::vector<std::uint64_t> alignments{kPage};
  const auto refused = [&](EntryPlan plan) {
    const auto reads = plan_reads(plan, alignments);
    return !reads && reads.error().reason == Reason::internal;
  };
  EntryPlan good = plan_of(1000, {{0, 0, 0, 1000}});
  EXPECT_FALSE(refused(good));
  EntryPlan plan = good;
  plan.images[0].nbytes = 1001;
  EXPECT_TRUE(refused(plan));
  plan = good;
  plan.images[0].pieces[0].source = 1;
  EXPECT_TRUE(refused(plan));
  plan = good;
  plan.images[0].pieces[0].source_offset = 1;
  EXPECT_TRUE(refused(plan));
  plan = good;
  plan.images[0].pieces[0].source_offset = ~std::uint64_t{0};
  EXPECT_TRUE(refused(plan));
  plan = good;
  plan.images[0].head = "x";
  EXPECT_TRUE(refused(plan));
}

/// Each landing as the blocks of the image that it is made of; none where it is not made of whole ones.
std::vector<std::size_t> blocks_of(const ImageHash& hash, const Landing& landing) {
  std::vector<std::size_t> blocks;
  const std::uint64_t end = landing.image_offset + landing.nbytes;
  for (std::uint64_t at = landing.image_offset; at < end;) {
    const std::size_t block = hash.block_at(at);
    const Segment where = hash.block(block);
    if (where.offset != at || where.nbytes > end - at) return {};
    blocks.push_back(block);
    at += where.nbytes;
  }
  return blocks;
}

TEST(ReadPlan, StagedReadsBringEveryHashBlockWholeAndOnce) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    testing::FakeDisk disk;
    const EntryPlan plan = testing::RandomDraft(seed).make(disk);
    const std::vector<std::uint64_t> alignments(plan.sources.size(), seed % 2 == 0 ? 4096 : 65536);
    const auto reads = plan_staged_reads(plan, alignments);
    ASSERT_TRUE(reads) << reads.error().message;
    std::vector<ImageHash> hashes(plan.images.begin(), plan.images.end());
    std::vector<std::vector<std::size_t>> found(plan.images.size());
    for (const PlannedRead& read : reads->reads) {
      EXPECT_FALSE(read.direct);
      EXPECT_EQ(read.offset % alignments[0], 0u);
      EXPECT_EQ(read.nbytes % alignments[0], 0u);
      EXPECT_LE(read.nbytes, kBounceNbytes);
      for (std::uint32_t i = 0; i < read.landings; ++i) {
        const Landing& landing = reads->landings[read.first_landing + i];
        EXPECT_LE(landing.nbytes, kChunk);
        EXPECT_LE(landing.from + landing.nbytes, read.needed);
        const std::vector<std::size_t> blocks = blocks_of(hashes[landing.image], landing);
        EXPECT_FALSE(blocks.empty());
        found[landing.image].insert(found[landing.image].end(), blocks.begin(), blocks.end());
      }
    }
    for (std::size_t i = 0; i < plan.images.size(); ++i) {
      std::ranges::sort(found[i]);
      const std::size_t in_head = (plan.images[i].head.size() + kHashBlock - 1) / kHashBlock;
      ASSERT_EQ(found[i].size() + in_head, hashes[i].block_count());
      for (std::size_t j = 0; j < found[i].size(); ++j) EXPECT_EQ(found[i][j], in_head + j);
    }
  }
}

TEST(ReadPlan, StagedReadsRefuseASegmentAcrossPieces) {
  EntryPlan plan = plan_of(1000, {{0, 0, 0, 100}, {0, 0, 500, 100}}, "head");
  const auto refused = [&](std::vector<Segment> segments) {
    plan.images[0].segments = std::move(segments);
    const auto reads = plan_staged_reads(plan, std::vector<std::uint64_t>{kPage});
    return !reads && reads.error().reason == Reason::internal;
  };
  EXPECT_FALSE(refused({{0, 4}, {4, 100}, {104, 100}}));
  EXPECT_FALSE(refused({{0, 4}, {4, 60}, {64, 40}, {104, 100}}));
  EXPECT_TRUE(refused({{0, 4}, {4, 200}}));
  EXPECT_TRUE(refused({{0, 4}, {4, 101}, {105, 99}}));
  EXPECT_TRUE(refused({{0, 104}, {104, 100}}));
  EXPECT_TRUE(refused({{0, 4}, {4, 100}}));
}

}  // namespace
}  // namespace wcache

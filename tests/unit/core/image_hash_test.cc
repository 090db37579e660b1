#include "core/image_hash.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <thread>

#include "tests/unit/core/sample_plan.h"

namespace wcache {
namespace {

using ::testing::ElementsAre;
using ::wcache::testing::sample_image;

constexpr std::uint64_t kMiB = 1 << 20;

/// A header of 10 bytes, a tensor of two blocks and a bit, one of a single byte, one of exactly a block.
ImagePlan image() {
  const std::vector<Segment> segments{{0, 10}, {10, 2 * kMiB + 5}, {2 * kMiB + 15, 1}, {2 * kMiB + 16, kMiB}};
  std::string bytes(3 * kMiB + 16, '\0');
  std::mt19937 random(7);
  std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<char>(random()); });
  return sample_image("model.safetensors", FileKind::safetensors, std::move(bytes), {}, segments);
}

std::span<const std::byte> bytes_of(const ImagePlan& plan, const Segment& where) {
  return std::as_bytes(std::span(plan.head)).subspan(where.offset, where.nbytes);
}

TEST(ImageHash, BlocksCoverTheImageInOrder) {
  const ImagePlan plan = image();
  const ImageHash hash(plan);
  std::vector<Segment> blocks;
  for (std::size_t i = 0; i < hash.block_count(); ++i) blocks.push_back(hash.block(i));
  EXPECT_THAT(blocks, ElementsAre(Segment{0, 10}, Segment{10, kMiB}, Segment{kMiB + 10, kMiB},
                                  Segment{2 * kMiB + 10, 5}, Segment{2 * kMiB + 15, 1},
                                  Segment{2 * kMiB + 16, kMiB}));
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    EXPECT_EQ(hash.block_at(blocks[i].offset), i);
    EXPECT_EQ(hash.block_at(blocks[i].offset + blocks[i].nbytes - 1), i);
  }
}

TEST(ImageHash, AnyOrderGivesTheDigestOfTheWhole) {
  const ImagePlan plan = image();
  const Digest whole = file_digest(std::as_bytes(std::span(plan.head)), plan.segments);
  std::mt19937 random(3);
  for (int round = 0; round < 5; ++round) {
    ImageHash hash(plan);
    std::vector<std::size_t> order(hash.block_count());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::shuffle(order.begin(), order.end(), random);
    for (std::size_t i : order) hash.add(i, bytes_of(plan, hash.block(i)));
    const ImageDigests digests = hash.finish();
    EXPECT_EQ(digests.file, whole);
    ASSERT_EQ(digests.segments.size(), plan.segments.size());
    for (std::size_t i = 0; i < digests.segments.size(); ++i)
      EXPECT_EQ(digests.segments[i], segment_digest(bytes_of(plan, plan.segments[i])));
  }
}

TEST(ImageHash, ThreadsMayAddDifferentBlocks) {
  const ImagePlan plan = image();
  ImageHash hash(plan);
  const auto add_every_second = [&](std::size_t from) {
    for (std::size_t i = from; i < hash.block_count(); i += 2) hash.add(i, bytes_of(plan, hash.block(i)));
  };
  std::thread other(add_every_second, 1);
  add_every_second(0);
  other.join();
  EXPECT_EQ(hash.finish().file, file_digest(std::as_bytes(std::span(plan.head)), plan.segments));
}

TEST(ImageHash, EmptyImageHasNoBlocks) {
  const ImagePlan plan = sample_image("empty", FileKind::other, "");
  const ImageHash hash(plan);
  EXPECT_EQ(hash.block_count(), 0u);
  EXPECT_EQ(hash.finish().file, file_digest({}));
}

}  // namespace
}  // namespace wcache

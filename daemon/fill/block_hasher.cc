#include "daemon/fill/block_hasher.h"

#include <algorithm>
#include <string>
#include <utility>

namespace wcache {

Result<BlockHasher> BlockHasher::create(const EntryPlan& plan, std::span<const std::span<std::byte>> images) {
  BlockHasher hasher(plan);
  if (images.size() != plan.images.size()) return fail(Reason::internal, "not one memory span an image");
  for (std::size_t i = 0; i < images.size(); ++i) {
    if (images[i].size() < plan.images[i].nbytes)
      return fail(Reason::internal, "the memory for " + plan.images[i].name + " is too small");
    auto image = make_image(plan.images[i], images[i].first(plan.images[i].nbytes));
    if (!image) return fail(image.error());
    hasher.images_.push_back(std::move(*image));
  }
  return hasher;
}

Result<BlockHasher::Image> BlockHasher::make_image(const ImagePlan& plan, std::span<const std::byte> bytes) {
  Image image;
  image.bytes = bytes;
  std::uint64_t at = 0;
  for (const Segment& segment : plan.segments) {
    if (segment.offset != at || segment.nbytes > bytes.size() - at)
      return fail(Reason::internal,
                  "the segments of " + plan.name + " are wrong at byte " + std::to_string(segment.offset));
    for (std::uint64_t done = 0; done < segment.nbytes; done += kHashBlock)
      image.blocks.push_back(
          {at + done, static_cast<std::uint32_t>(std::min(kHashBlock, segment.nbytes - done))});
    at += segment.nbytes;
  }
  if (at != bytes.size()) return fail(Reason::internal, "the segments of " + plan.name + " do not cover it");
  image.digests.resize(image.blocks.size());
  image.chunks = (bytes.size() + kChunk - 1) / kChunk;
  image.missing = std::make_unique<std::atomic<std::uint32_t>[]>(image.chunks);
  image.sides = std::make_unique<std::atomic<std::uint8_t>[]>(image.chunks);
  for (std::size_t i = 0; i < image.chunks; ++i)
    image.missing[i] = static_cast<std::uint32_t>(std::min<std::uint64_t>(kChunk, bytes.size() - i * kChunk));
  return image;
}

void BlockHasher::arrived(std::size_t image, std::uint64_t offset, std::uint64_t nbytes) {
  if (nbytes == 0) return;
  Image& to = images_[image];
  const std::size_t chunk = offset / kChunk;
  const auto count = static_cast<std::uint32_t>(nbytes);
  // Release: this thread's bytes are seen by whoever completes the chunk. Acquire: it sees everybody's.
  if (to.missing[chunk].fetch_sub(count, std::memory_order_acq_rel) == count) hash_chunk(to, chunk);
}

void BlockHasher::hash_chunk(Image& image, std::size_t chunk) {
  const std::uint64_t begin = chunk * kChunk;
  const std::uint64_t end = std::min<std::uint64_t>(begin + kChunk, image.bytes.size());
  auto block = std::upper_bound(image.blocks.begin(), image.blocks.end(), begin,
                                [](std::uint64_t at, const Block& b) { return at < b.offset + b.nbytes; });
  const auto is_second_side = [&image](std::size_t boundary) {
    return image.sides[boundary].fetch_add(1, std::memory_order_acq_rel) == 1;
  };
  // The flag of a boundary counts whether or not a block crosses it, so that both sides agree.
  const bool whole_before = chunk == 0 || is_second_side(chunk - 1);
  const bool whole_after = end == image.bytes.size() || is_second_side(chunk);
  for (; block != image.blocks.end() && block->offset < end; ++block) {
    const bool crosses_begin = block->offset < begin;
    const bool crosses_end = block->offset + block->nbytes > end;
    if ((crosses_begin && !whole_before) || (crosses_end && !whole_after)) continue;
    hash_block(image, static_cast<std::size_t>(block - image.blocks.begin()));
  }
}

void BlockHasher::hash_block(Image& image, std::size_t block) {
  const Block& at = image.blocks[block];
  image.digests[block] = digest_of(image.bytes.subspan(at.offset, at.nbytes));
}

std::vector<ImageDigests> BlockHasher::finish() const {
  std::vector<ImageDigests> out;
  out.reserve(images_.size());
  for (std::size_t i = 0; i < images_.size(); ++i) {
    const std::vector<Segment>& segments = plan_->images[i].segments;
    std::span<const Digest> blocks = images_[i].digests;
    ImageDigests digests;
    for (const Segment& segment : segments) {
      const std::size_t count = block_count(segment.nbytes);
      digests.segments.push_back(combine_blocks(blocks.first(count), segment.nbytes));
      blocks = blocks.subspan(count);
    }
    digests.file = combine_segments(segments, digests.segments);
    out.push_back(std::move(digests));
  }
  return out;
}

}  // namespace wcache

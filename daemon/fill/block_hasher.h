#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/digest.h"
#include "core/entry_plan.h"
#include "core/manifest.h"
#include "core/result.h"
#include "daemon/fill/read_plan.h"

namespace wcache {

/// Hashes images while they are filled, each byte once, as soon as its block is there and still in the
/// processor's cache. The result does not depend on the order of arrival. A block crosses at most one
/// boundary between chunks, since no block is larger than a chunk; it is hashed by whoever completes the
/// second of the two.
class BlockHasher {
 public:
  /// Borrows `plan` and `images` (one span an image, at least its size). Reason::internal for segments that
  /// do not cover an image exactly.
  static Result<BlockHasher> create(const EntryPlan& plan, std::span<const std::span<std::byte>> images);

  /// `nbytes` more bytes are in place, all within one chunk; no byte may arrive twice. Hashes what this
  /// completes, on the calling thread. Safe for concurrent use.
  void arrived(std::size_t image, std::uint64_t offset, std::uint64_t nbytes);

  /// When every byte has arrived and no call is running: digests in the plan's order.
  std::vector<ImageDigests> finish() const;

 private:
  static_assert(kHashBlock <= kChunk);

  struct Block {
    std::uint64_t offset = 0;
    std::uint32_t nbytes = 0;
  };
  struct Image {
    std::span<const std::byte> bytes;
    std::vector<Block> blocks;  // in order of offset
    std::vector<Digest> digests;
    std::size_t chunks = 0;
    std::unique_ptr<std::atomic<std::uint32_t>[]> missing;  // bytes of each chunk
    std::unique_ptr<std::atomic<std::uint8_t>[]>
        sides;  // complete chunks on either side of the end of each chunk
  };

  explicit BlockHasher(const EntryPlan& plan) : plan_(&plan) {}
  static Result<Image> make_image(const ImagePlan& plan, std::span<const std::byte> bytes);
  static void hash_chunk(Image& image, std::size_t chunk);
  static void hash_block(Image& image, std::size_t block);

  const EntryPlan* plan_;
  std::vector<Image> images_;
};

}  // namespace wcache

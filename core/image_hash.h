#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/entry_plan.h"
#include "core/manifest.h"

namespace wcache {

/// The hash tree (core/digest.h) of one image whose blocks arrive in any order. Blocks are numbered in order
/// of offset and cover the image without hole or overlap. Borrows the plan. Different blocks may be added by
/// different threads at the same time; `finish` is for after all of them.
class ImageHash {
 public:
  explicit ImageHash(const ImagePlan& image);

  std::size_t block_count() const { return blocks_.size(); }

  /// Where block `index` lies in the image.
  Segment block(std::size_t index) const;

  /// The block that holds the byte at `offset` of the image.
  std::size_t block_at(std::uint64_t offset) const;

  /// `bytes` are all bytes of the block.
  void add(std::size_t index, std::span<const std::byte> bytes) { blocks_[index] = digest_of(bytes); }

  /// `bytes` are those of whole blocks, the first of which begins at `offset` of the image.
  void add_run(std::uint64_t offset, std::span<const std::byte> bytes);

  /// Every block was added.
  ImageDigests finish() const;

 private:
  const ImagePlan& image_;
  std::vector<std::size_t> first_block_;  ///< of each segment
  std::vector<Digest> blocks_;
};

}  // namespace wcache

#include "core/image_hash.h"

#include <algorithm>

namespace wcache {

ImageHash::ImageHash(const ImagePlan& image) : image_(image) {
  first_block_.reserve(image.segments.size());
  std::size_t blocks = 0;
  for (const Segment& segment : image.segments) {
    first_block_.push_back(blocks);
    blocks += wcache::block_count(segment.nbytes);
  }
  blocks_.resize(blocks);
}

Segment ImageHash::block(std::size_t index) const {
  const auto after = std::upper_bound(first_block_.begin(), first_block_.end(), index);
  const auto at = static_cast<std::size_t>(after - first_block_.begin()) - 1;
  const Segment& segment = image_.segments[at];
  const std::uint64_t begin = (index - first_block_[at]) * kHashBlock;
  return {segment.offset + begin, std::min(kHashBlock, segment.nbytes - begin)};
}

std::size_t ImageHash::block_at(std::uint64_t offset) const {
  const auto after =
      std::upper_bound(image_.segments.begin(), image_.segments.end(), offset,
                       [](std::uint64_t value, const Segment& segment) { return value < segment.offset; });
  const auto at = static_cast<std::size_t>(after - image_.segments.begin()) - 1;
  return first_block_[at] + (offset - image_.segments[at].offset) / kHashBlock;
}

void ImageHash::add_run(std::uint64_t offset, std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  for (std::size_t index = block_at(offset); !bytes.empty(); ++index) {
    const std::uint64_t nbytes = block(index).nbytes;
    add(index, bytes.first(nbytes));
    bytes = bytes.subspan(nbytes);
  }
}

ImageDigests ImageHash::finish() const {
  ImageDigests digests;
  digests.segments.reserve(image_.segments.size());
  for (std::size_t i = 0; i < image_.segments.size(); ++i) {
    const std::uint64_t nbytes = image_.segments[i].nbytes;
    const auto blocks = std::span(blocks_).subspan(first_block_[i], wcache::block_count(nbytes));
    digests.segments.push_back(combine_blocks(blocks, nbytes));
  }
  digests.file = combine_segments(image_.segments, digests.segments);
  return digests;
}

}  // namespace wcache

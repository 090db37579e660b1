#include <algorithm>

#include "core/checkpoint/checkpoint.h"

namespace wcache {

std::vector<Segment> segments_of(std::uint64_t file_nbytes, const std::vector<TensorInfo>& tensors) {
  std::vector<Segment> segments;
  segments.reserve(tensors.size() + 1);
  std::uint64_t at = 0;
  for (const TensorInfo& tensor : tensors) {
    if (tensor.nbytes == 0) continue;
    if (tensor.offset > at) segments.push_back({at, tensor.offset - at});
    segments.push_back({tensor.offset, tensor.nbytes});
    at = tensor.offset + tensor.nbytes;
  }
  if (file_nbytes > at) segments.push_back({at, file_nbytes - at});
  return segments;
}

}  // namespace wcache

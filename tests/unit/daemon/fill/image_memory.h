#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "core/entry_plan.h"
#include "core/fd.h"
#include "daemon/memory/pages.h"

namespace wcache::testing {

/// Memory for the images of a plan as an Arena gives it: page-aligned, whole pages, zero.
class ImageMemory {
 public:
  explicit ImageMemory(const EntryPlan& plan) {
    for (const ImagePlan& image : plan.images) {
      const std::uint64_t nbytes = whole_pages(image.nbytes);
      mappings_.push_back(
          Mapping::map(-1, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, image.name).value());
      spans_.emplace_back(mappings_.back().data(), nbytes);
    }
  }

  std::span<const std::span<std::byte>> spans() const { return spans_; }

 private:
  std::vector<Mapping> mappings_;
  std::vector<std::span<std::byte>> spans_;
};

inline std::vector<std::byte> random_bytes(std::uint64_t nbytes, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(nbytes);
  for (std::size_t i = 0; i < bytes.size(); i += 8) {
    const std::uint64_t word = random();
    for (std::size_t j = i; j < std::min(bytes.size(), i + 8); ++j)
      bytes[j] = static_cast<std::byte>(word >> 8 * (j - i));
  }
  return bytes;
}

/// An image that is source `index` byte for byte.
inline ImagePlan whole_image(const SourceFile& source, std::uint32_t index) {
  ImagePlan image;
  image.name = source.name;
  image.kind = FileKind::safetensors;
  image.nbytes = source.identity.nbytes;
  if (image.nbytes > 0) {
    image.pieces.push_back({0, index, 0, image.nbytes});
    image.segments.push_back({0, image.nbytes});
  }
  return image;
}

}  // namespace wcache::testing

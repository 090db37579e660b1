#pragma once

#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "core/entry_plan.h"
#include "tests/unit/daemon/fill/fake_disk.h"
#include "tests/unit/daemon/fill/image_memory.h"

namespace wcache::testing {

/// A plan as drafts and checkpoints have them: whole files, and images of a literal header and of pieces from
/// anywhere, each of them one or several whole segments of any size. Every image is of kind safetensors.
class RandomDraft {
 public:
  explicit RandomDraft(std::uint64_t seed) : random_(seed) {}

  EntryPlan make(FakeDisk& disk) {
    EntryPlan plan;
    for (std::uint64_t i = 0, n = 1 + below(3); i < n; ++i)
      plan.sources.push_back(
          disk.add("s" + std::to_string(i), random_bytes(1 + below(9'000'000), random_())));
    for (std::uint32_t i = 0; i < plan.sources.size(); ++i)
      if (below(2) == 0) plan.images.push_back(whole(plan.sources[i], i));
    for (std::uint64_t i = 0, n = 1 + below(2); i < n; ++i) plan.images.push_back(patchwork(plan.sources));
    return plan;
  }

 private:
  std::uint64_t below(std::uint64_t n) { return random_() % n; }

  void cut(ImagePlan& image, std::uint64_t begin, std::uint64_t nbytes) {
    for (std::uint64_t at = begin, end = begin + nbytes; at < end;) {
      const std::uint64_t most = below(3) == 0 ? 4'000'000 : below(2) == 0 ? 40 : 300'000;
      const std::uint64_t size = std::min(end - at, 1 + below(most));
      image.segments.push_back({at, size});
      at += size;
    }
  }

  ImagePlan whole(const SourceFile& source, std::uint32_t index) {
    ImagePlan image = whole_image(source, index);
    image.segments.clear();
    cut(image, 0, image.nbytes);
    return image;
  }

  ImagePlan patchwork(const std::vector<SourceFile>& sources) {
    ImagePlan image;
    image.name = "patchwork";
    image.kind = FileKind::safetensors;
    image.head = std::string(below(4) == 0 ? 0 : 1 + below(3'000'000), 'h');
    image.nbytes = image.head.size();
    if (image.nbytes > 0) image.segments.push_back({0, image.nbytes});
    for (std::uint64_t i = 0, n = below(12); i < n; ++i) {
      const auto source = static_cast<std::uint32_t>(below(sources.size()));
      const std::uint64_t size = sources[source].identity.nbytes;
      const std::uint64_t offset = below(3) == 0 ? below(size) / 4096 * 4096 : below(size);
      const std::uint64_t nbytes = below(2) == 0 ? size - offset : 1 + below(size - offset);
      image.pieces.push_back({image.nbytes, source, offset, nbytes});
      cut(image, image.nbytes, nbytes);
      image.nbytes += nbytes;
    }
    return image;
  }

  std::mt19937_64 random_;
};

/// What image `index` of a plan over the files of `disk` has to hold.
inline std::vector<std::byte> expected_image(const EntryPlan& plan, FakeDisk& disk, std::size_t index) {
  const ImagePlan& image = plan.images[index];
  std::vector<std::byte> bytes(image.nbytes);
  std::ranges::copy(std::as_bytes(std::span(image.head)), bytes.begin());
  for (const Piece& piece : image.pieces)
    std::memcpy(bytes.data() + piece.image_offset,
                disk.file(plan.sources[piece.source].name).bytes.data() + piece.source_offset, piece.nbytes);
  return bytes;
}

}  // namespace wcache::testing

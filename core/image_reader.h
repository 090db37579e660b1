#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/entry_plan.h"
#include "core/fd.h"

namespace wcache {

/// Reads bytes of images from where the plan takes them, without making the image. Keeps one source open. One
/// thread at a time; borrows the plan.
class ImageReader {
 public:
  explicit ImageReader(const EntryPlan& plan) : plan_(plan) {}

  /// Fills `out` with the image's bytes from `offset` on, and makes sure that the sources they came from did
  /// not change. Errors: stale naming file and offset, denied, io; internal when head and pieces do not cover
  /// the range.
  Status read(const ImagePlan& image, std::uint64_t offset, std::span<std::byte> out);

 private:
  Status read_piece(const Piece& piece, std::uint64_t skip, std::span<std::byte> out);

  static constexpr std::uint32_t kNone = UINT32_MAX;
  const EntryPlan& plan_;
  std::uint32_t open_ = kNone;
  Fd fd_;
};

}  // namespace wcache

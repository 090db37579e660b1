#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.h"

namespace wcache {

/// Reads a file's header from front to back, little-endian, through a window. The first failure sticks:
/// everything after it reads as zero or empty, so that a caller checks once where it matters. It never reads
/// past `limit` bytes.
class ByteCursor {
 public:
  /// Borrows `fd`. `name` is for errors and must outlive the cursor.
  ByteCursor(int fd, std::uint64_t file_nbytes, std::uint64_t limit, std::string_view name);

  bool ok() const { return !error_.has_value(); }
  /// Only where !ok().
  const Error& error() const { return *error_; }

  std::uint64_t at() const { return at_; }
  std::uint64_t remaining() const { return file_nbytes_ - at_; }

  /// An unsigned integer of `nbytes` (1, 2, 4 or 8). `what` names it in errors, here and below.
  std::uint64_t number(std::size_t nbytes, std::string_view what);
  /// `nbytes` bytes; more than 64 KiB are a failure.
  std::string text(std::uint64_t nbytes, std::string_view what);
  void skip(std::uint64_t nbytes, std::string_view what);

  /// Makes the cursor fail with Reason::corrupt, "<check>: <file>: <what>".
  void fail_with(std::string_view check, std::string_view what);

 private:
  bool have(std::uint64_t nbytes, std::string_view what);
  bool fill(std::size_t nbytes, std::string_view what);

  int fd_;
  std::uint64_t file_nbytes_;
  std::uint64_t limit_;
  std::string_view name_;
  std::uint64_t at_ = 0;
  std::uint64_t window_start_ = 0;
  std::vector<char> window_;
  std::optional<Error> error_;
};

}  // namespace wcache

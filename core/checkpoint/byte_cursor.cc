#include "core/checkpoint/byte_cursor.h"

#include <algorithm>
#include <span>
#include <utility>

#include "core/fd.h"
#include "core/format.h"

namespace wcache {
namespace {

constexpr std::size_t kWindow = std::size_t{1} << 18;
constexpr std::size_t kLongestText = std::size_t{1} << 16;

}  // namespace

ByteCursor::ByteCursor(int fd, std::uint64_t file_nbytes, std::uint64_t limit, std::string_view name)
    : fd_(fd), file_nbytes_(file_nbytes), limit_(limit), name_(name) {}

void ByteCursor::fail_with(std::string_view check, std::string_view what) {
  if (error_) return;
  error_ = Error{Reason::corrupt, std::string(check) + ": " + printable(name_) + ": " + std::string(what)};
}

bool ByteCursor::have(std::uint64_t nbytes, std::string_view what) {
  if (error_) return false;
  if (nbytes > remaining()) {
    fail_with("Truncated", "the file ends within " + std::string(what) + " (" + std::to_string(nbytes) +
                               " bytes at byte " + std::to_string(at_) + ", the file has " +
                               std::to_string(file_nbytes_) + ")");
  } else if (at_ + nbytes > limit_) {
    fail_with("HeaderTooLarge", "the header is longer than " + std::to_string(limit_) + " bytes");
  }
  return ok();
}

bool ByteCursor::fill(std::size_t nbytes, std::string_view what) {
  if (!have(nbytes, what)) return false;
  if (at_ >= window_start_ && at_ + nbytes <= window_start_ + window_.size()) return true;
  window_.resize(static_cast<std::size_t>(std::min<std::uint64_t>(std::max(kWindow, nbytes), remaining())));
  window_start_ = at_;
  Status status = read_exact(fd_, std::as_writable_bytes(std::span(window_)), at_, printable(name_));
  if (!status) error_ = std::move(status.error());
  return ok();
}

std::uint64_t ByteCursor::number(std::size_t nbytes, std::string_view what) {
  if (!fill(nbytes, what)) return 0;
  std::uint64_t value = 0;
  const std::size_t start = static_cast<std::size_t>(at_ - window_start_);
  for (std::size_t i = nbytes; i-- > 0;) value = value << 8 | static_cast<unsigned char>(window_[start + i]);
  at_ += nbytes;
  return value;
}

std::string ByteCursor::text(std::uint64_t nbytes, std::string_view what) {
  if (!have(nbytes, what)) return {};
  if (nbytes > kLongestText) {
    fail_with("StringTooLong", std::string(what) + " at byte " + std::to_string(at_) + " has " +
                                   std::to_string(nbytes) + " bytes, more than " +
                                   std::to_string(kLongestText));
    return {};
  }
  const auto n = static_cast<std::size_t>(nbytes);
  if (!fill(n, what)) return {};
  std::string out(window_.data() + (at_ - window_start_), n);
  at_ += nbytes;
  return out;
}

void ByteCursor::skip(std::uint64_t nbytes, std::string_view what) {
  if (have(nbytes, what)) at_ += nbytes;
}

}  // namespace wcache

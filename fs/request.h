#pragma once

#include <fuse_lowlevel.h>

#include <cerrno>
#include <span>
#include <string_view>
#include <utility>

namespace wcache {

/// One request of the kernel's, to be answered exactly once: each reply consumes it, and one that goes
/// without a reply is answered with EIO. Hold no lock while replying: the reply may let the kernel forget the
/// node at once. Move-only.
class Request {
 public:
  explicit Request(fuse_req_t request) : request_(request) {}
  Request(Request&& other) noexcept : request_(std::exchange(other.request_, nullptr)) {}
  Request& operator=(Request&&) = delete;
  ~Request() {
    if (request_ != nullptr) fuse_reply_err(request_, EIO);
  }

  /// The thread that asks, in this mount's pid namespace; 0 when it is in none of ours.
  int thread() const { return static_cast<int>(fuse_req_ctx(request_)->pid); }
  uid_t uid() const { return fuse_req_ctx(request_)->uid; }
  /// For fuse_add_direntry and its like, which need it and do not reply.
  fuse_req_t raw() const { return request_; }

  // Each is true when the kernel took the reply. A reply that it did not take is one all the same.
  bool error(int errnum) { return fuse_reply_err(take(), errnum) == 0; }
  bool ok() { return error(0); }
  bool entry(const fuse_entry_param& entry) { return fuse_reply_entry(take(), &entry) == 0; }
  bool attr(const struct stat& st, double timeout) { return fuse_reply_attr(take(), &st, timeout) == 0; }
  bool link(const char* target) { return fuse_reply_readlink(take(), target) == 0; }
  bool open(const fuse_file_info& file) { return fuse_reply_open(take(), &file) == 0; }
  bool bytes(std::span<const std::byte> bytes) {
    return fuse_reply_buf(take(), reinterpret_cast<const char*>(bytes.data()), bytes.size()) == 0;
  }
  bool bytes(std::string_view text) { return fuse_reply_buf(take(), text.data(), text.size()) == 0; }
  bool statfs(const struct statvfs& st) { return fuse_reply_statfs(take(), &st) == 0; }
  bool xattr_size(std::size_t size) { return fuse_reply_xattr(take(), size) == 0; }
  void none() { fuse_reply_none(take()); }

  /// No reply: the session may be gone. The kernel ends the request with the connection; its memory stays.
  void abandon() { take(); }

 private:
  fuse_req_t take() { return std::exchange(request_, nullptr); }
  fuse_req_t request_;
};

}  // namespace wcache

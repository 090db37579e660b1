#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "core/result.h"

namespace wcache {

/// Owns one file descriptor; closes it on destruction. Move-only. A `Fd` parameter takes ownership, a raw `int`
/// parameter borrows. Every descriptor here is close-on-exec and numbered above 2 (`adopt` moves lower ones up:
/// a service whose standard streams are closed must not get a weight file as its standard output).
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(other.release()) {}
  Fd& operator=(Fd&& other) noexcept;
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  ~Fd() { reset(); }

  /// Takes a freshly opened descriptor (or -1) and guarantees close-on-exec and a number above 2.
  static Fd adopt(int fd);

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release();
  void reset();

  /// A second descriptor of the same open file description, close-on-exec.
  Result<Fd> duplicate() const;

 private:
  int fd_ = -1;
};

/// Owns one mapping of a file; unmaps on destruction. Move-only.
class Mapping {
 public:
  Mapping() = default;
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() { reset(); }

  /// Maps [0, nbytes) of `fd`. `prot` and `flags` as in mmap(2). The address is aligned to 2 MiB when nbytes is at
  /// least that, so that huge pages of the file can be mapped by huge entries. nbytes 0 gives an empty mapping.
  static Result<Mapping> map(int fd, std::size_t nbytes, int prot, int flags, std::string_view what);

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  void reset();

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

/// Opens with O_CLOEXEC added. The error names the path.
Result<Fd> open_file(const char* path, int flags, unsigned mode = 0);

/// Reads exactly `out.size()` bytes at `offset`, retrying EINTR and short reads. End of file before that is
/// Reason::io with errnum 0. `what` names the file in the error.
Status read_exact(int fd, std::span<std::byte> out, std::uint64_t offset, std::string_view what);

}  // namespace wcache

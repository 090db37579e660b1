#include "core/fd.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>

namespace wcache {
namespace {

constexpr int kFirstOwnFd = 3;
constexpr std::size_t kHugePage = std::size_t{2} << 20;

/// Reserves address space for `nbytes` at a 2 MiB boundary; nullptr when the kernel refuses.
std::byte* reserve_aligned(std::size_t nbytes) {
  const std::size_t span = nbytes + kHugePage;
  void* raw = mmap(nullptr, span, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  auto* begin = static_cast<std::byte*>(raw);
  const auto address = reinterpret_cast<std::uintptr_t>(raw);
  const std::size_t head = (kHugePage - address % kHugePage) % kHugePage;
  if (head > 0) munmap(begin, head);
  const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::size_t body = (nbytes + page - 1) / page * page;
  munmap(begin + head + body, span - head - body);
  return begin + head;
}

}  // namespace

Fd& Fd::operator=(Fd&& other) noexcept {
  if (this != &other) {
    reset();
    fd_ = other.release();
  }
  return *this;
}

Fd Fd::adopt(int fd) {
  if (fd < 0) return Fd();
  if (fd >= kFirstOwnFd) {
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    return Fd(fd);
  }
  const int moved = fcntl(fd, F_DUPFD_CLOEXEC, kFirstOwnFd);
  close(fd);
  return Fd(moved);
}

int Fd::release() { return std::exchange(fd_, -1); }

void Fd::reset() {
  if (fd_ >= 0) close(std::exchange(fd_, -1));
}

Result<Fd> Fd::duplicate() const {
  const int copy = fcntl(fd_, F_DUPFD_CLOEXEC, kFirstOwnFd);
  if (copy < 0) return fail_errno("duplicating a file descriptor", errno);
  return Fd(copy);
}

Mapping::Mapping(Mapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  if (this != &other) {
    reset();
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

Result<Mapping> Mapping::map(int fd, std::size_t nbytes, int prot, int flags, std::string_view what) {
  Mapping mapping;
  if (nbytes == 0) return mapping;
  std::byte* hint = nbytes >= kHugePage ? reserve_aligned(nbytes) : nullptr;
  void* data = mmap(hint, nbytes, prot, hint != nullptr ? flags | MAP_FIXED : flags, fd, 0);
  if (data == MAP_FAILED) {
    const int errnum = errno;
    if (hint != nullptr) munmap(hint, nbytes);
    return fail_errno("mapping " + std::to_string(nbytes) + " bytes of " + std::string(what), errnum);
  }
  mapping.data_ = static_cast<std::byte*>(data);
  mapping.size_ = nbytes;
  return mapping;
}

void Mapping::reset() {
  if (data_ != nullptr) munmap(std::exchange(data_, nullptr), std::exchange(size_, 0));
}

Result<Fd> open_file(const char* path, int flags, unsigned mode) {
  const int fd = open(path, flags | O_CLOEXEC, mode);
  if (fd < 0) return fail_errno(std::string("opening ") + path, errno);
  return Fd::adopt(fd);
}

Status read_exact(int fd, std::span<std::byte> out, std::uint64_t offset, std::string_view what) {
  std::size_t done = 0;
  while (done < out.size()) {
    const ssize_t n = pread(fd, out.data() + done, out.size() - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail_errno("reading " + std::string(what) + " at byte " + std::to_string(offset + done), errno);
    if (n == 0)
      return fail(Reason::io, std::string(what) + " ends at byte " + std::to_string(offset + done) + ", " +
                                  std::to_string(out.size() - done) + " bytes early");
    done += static_cast<std::size_t>(n);
  }
  return {};
}

}  // namespace wcache

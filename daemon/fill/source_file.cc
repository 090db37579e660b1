#include "daemon/fill/source_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

namespace wcache {
namespace {

/// Serves every disk in use; a file system that needs more says so (statx, Linux 6.1).
constexpr std::uint64_t kDirectAlignment = 4096;

/// 0: the file system says that it cannot do direct reads of this file.
std::uint64_t direct_alignment(int fd) {
#ifdef STATX_DIOALIGN
  struct statx stx {};
  if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &stx) == 0 && (stx.stx_mask & STATX_DIOALIGN) != 0) {
    if (stx.stx_dio_offset_align == 0) return 0;
    return std::max<std::uint64_t>({kDirectAlignment, stx.stx_dio_offset_align, stx.stx_dio_mem_align});
  }
#endif
  return kDirectAlignment;
}

}  // namespace

Result<std::unique_ptr<DiskFile>> SourceFileHandle::open(const std::filesystem::path& path, Access access) {
  // Opening anything else (a FIFO) could block for ever.
  struct stat st {};
  if (stat(path.c_str(), &st) != 0) return fail_errno("opening " + path.string(), errno);
  if (!S_ISREG(st.st_mode)) return fail(Reason::invalid, path.string() + " is no regular file");
  auto fd = open_file(path.c_str(), O_RDONLY | (access == Access::direct ? O_DIRECT : 0));
  if (!fd) return fail(fd.error());
  std::uint64_t alignment = 1;
  if (access == Access::direct) {
    alignment = direct_alignment(fd->get());
    if (alignment == 0) return fail_errno("opening " + path.string() + " for direct reads", EINVAL);
  } else {
    posix_fadvise(fd->get(), 0, 0, POSIX_FADV_SEQUENTIAL);
  }
  return std::unique_ptr<DiskFile>(new SourceFileHandle(std::move(*fd), alignment, path.string()));
}

Result<FileIdentity> SourceFileHandle::identity() const {
  struct stat st {};
  if (fstat(fd_.get(), &st) != 0) return fail_errno("fstat of " + path_, errno);
  return FileIdentity::of(st);
}

void SourceFileHandle::drop_cache(std::uint64_t offset, std::uint64_t nbytes) {
  posix_fadvise(fd_.get(), static_cast<off_t>(offset), static_cast<off_t>(nbytes), POSIX_FADV_DONTNEED);
}

}  // namespace wcache

#include "core/sealed.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>

#include <cerrno>
#include <string>

namespace wcache {
namespace {

constexpr int kFinalSeals = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW;

Status check_unchangeable(int fd) {
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals >= 0 && (seals & kFinalSeals) == kFinalSeals) return {};
  struct statfs fs {};
  if (fstatfs(fd, &fs) != 0) return fail_errno("fstatfs of received memory", errno);
  if (fs.f_type != TMPFS_MAGIC)
    return fail(Reason::corrupt, "received memory is a file of another file system than tmpfs");
  if ((static_cast<unsigned long>(fs.f_flags) & ST_RDONLY) == 0)
    return fail(Reason::corrupt, "received memory is not read-only: neither sealed nor of a read-only tmpfs");
  return {};
}

}  // namespace

Status check_sealed(int fd, std::uint64_t nbytes) {
  struct stat st {};
  if (fstat(fd, &st) != 0) return fail_errno("fstat of received memory", errno);
  if (!S_ISREG(st.st_mode)) return fail(Reason::corrupt, "received memory is no regular file");
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0) return fail_errno("flags of received memory", errno);
  if ((flags & O_ACCMODE) != O_RDONLY || (flags & O_PATH) != 0)
    return fail(Reason::corrupt, "received memory is not open for reading only");
  if (static_cast<std::uint64_t>(st.st_size) != nbytes)
    return fail(Reason::corrupt, "received memory is " + std::to_string(st.st_size) +
                                     " bytes, the manifest says " + std::to_string(nbytes));
  return check_unchangeable(fd);
}

}  // namespace wcache

#include "daemon/memory/kernel.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <unistd.h>

namespace wcache {

MemoryKernel MemoryKernel::real() {
  MemoryKernel kernel;
  kernel.fsopen = [](const char* type, unsigned flags) { return ::fsopen(type, flags); };
  kernel.fsconfig = [](int context, unsigned command, const char* key, const void* value, int aux) {
    return ::fsconfig(context, command, key, value, aux);
  };
  kernel.fsmount = [](int context, unsigned flags, unsigned attributes) {
    return ::fsmount(context, flags, attributes);
  };
  kernel.fspick = [](int directory, const char* path, unsigned flags) {
    return ::fspick(directory, path, flags);
  };
  kernel.openat = [](int directory, const char* name, int flags, mode_t mode) {
    return ::openat(directory, name, flags, mode);
  };
  kernel.memfd_create = [](const char* name, unsigned flags) { return ::memfd_create(name, flags); };
  kernel.ftruncate = [](int fd, off_t nbytes) { return ::ftruncate(fd, nbytes); };
  kernel.fallocate = [](int fd, int mode, off_t offset, off_t nbytes) {
    return ::fallocate(fd, mode, offset, nbytes);
  };
  kernel.add_seals = [](int fd, int seals) { return ::fcntl(fd, F_ADD_SEALS, seals); };
  return kernel;
}

}  // namespace wcache

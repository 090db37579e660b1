#pragma once

#include <sys/types.h>

#include <functional>

namespace wcache {

/// The kernel calls behind an Arena, each with the meaning and the errno of the system call of its name.
/// Tests replace single ones to play a kernel or a user that lacks them.
struct MemoryKernel {
  std::function<int(const char* type, unsigned flags)> fsopen;
  std::function<int(int context, unsigned command, const char* key, const void* value, int aux)> fsconfig;
  std::function<int(int context, unsigned flags, unsigned attributes)> fsmount;
  std::function<int(int directory, const char* path, unsigned flags)> fspick;
  std::function<int(int directory, const char* name, int flags, mode_t mode)> openat;
  std::function<int(const char* name, unsigned flags)> memfd_create;
  std::function<int(int fd, off_t nbytes)> ftruncate;
  std::function<int(int fd, int mode, off_t offset, off_t nbytes)> fallocate;
  std::function<int(int fd, int seals)> add_seals;

  static MemoryKernel real();
};

}  // namespace wcache

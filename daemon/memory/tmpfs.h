#pragma once

#include <cstdint>
#include <string>

#include "core/fd.h"
#include "core/result.h"
#include "daemon/memory/kernel.h"

namespace wcache {

/// A tmpfs of our own that is mounted nowhere: only its descriptors lead to it, and its memory lives as long
/// as the last descriptor or mapping of one of its files. Move-only. Needs CAP_SYS_ADMIN.
class PrivateTmpfs {
 public:
  struct Limits {
    std::uint64_t nbytes = 0;  ///< kept by the kernel; counts whole pages
    std::uint64_t files = 0;
    bool huge_pages = false;  ///< 2 MiB pages where a file is large enough (huge=within_size)
  };

  /// Options that this kernel does not know are left out: `noswap` (before 6.4), `huge` (no transparent huge
  /// pages). An error carries the errno of the call that failed. `kernel` is borrowed and must outlive the
  /// object.
  static Result<PrivateTmpfs> create(const MemoryKernel& kernel, const Limits& limits);

  /// A new empty file of mode 0400, open for reading and writing. It keeps its name: a file without one would
  /// make make_read_only fail for ever.
  Result<Fd> create_file(const std::string& name);

  /// Makes the file system read-only for good: nobody, with any rights, can write a byte, change a size or
  /// make it writable again, because the last way to its mount closes here. Every descriptor and mapping that
  /// could write, and every registered io_uring buffer, must be gone: EBUSY otherwise (registered buffers are
  /// not even noticed).
  Status make_read_only() &&;

 private:
  PrivateTmpfs(const MemoryKernel& kernel, Fd mount) : kernel_(&kernel), mount_(std::move(mount)) {}
  const MemoryKernel* kernel_;
  Fd mount_;
};

}  // namespace wcache

#pragma once

#include <memory>

#include "daemon/fill/disk.h"

namespace wcache {

/// Reads with pread(2): a queue does one read after another on the thread that reaps. For machines that
/// refuse io_uring. A read that the kernel does not end cannot be given up.
std::unique_ptr<Disk> open_pread_disk();

}  // namespace wcache

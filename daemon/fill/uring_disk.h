#pragma once

#include <memory>

#include "daemon/fill/disk.h"

namespace wcache {

/// Reads with io_uring: one ring a queue, nothing registered with it (a registered buffer would outlive the
/// sealing of its memory). An error says what the kernel refused.
Result<std::unique_ptr<Disk>> open_uring_disk();

}  // namespace wcache

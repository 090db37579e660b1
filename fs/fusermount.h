#pragma once

#include <string>
#include <vector>

#include "core/fd.h"
#include "core/result.h"

namespace wcache {

/// Mounts with the system's setuid fusermount3 and gives the /dev/fuse descriptor. `options` as mount(8) has
/// them. unsupported when there is no such program.
Result<Fd> fusermount_mount(const std::string& path, const std::string& options);

/// Takes down a mount that fusermount_mount made.
Status fusermount_unmount(const std::string& path, bool lazily);

}  // namespace wcache

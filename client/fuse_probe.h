#pragma once

#include <string>

#include "core/result.h"

namespace wcache {

/// What a trial of FUSE gave. Nothing is mounted anywhere: the trial's mount has no place in the tree.
struct FuseProbe {
  Status device;       ///< opening /dev/fuse
  Status mount;        ///< making a mount with this process's own rights
  Status passthrough;  ///< registering memory as a backing file; only tried when the mount could be made
  std::string helper;  ///< path of a setuid fusermount3, which mounts for those without rights; empty when
                       ///< there is none
};

/// Takes a few milliseconds; gives up on a kernel that does not answer after two seconds.
FuseProbe probe_fuse();

}  // namespace wcache

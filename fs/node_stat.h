#pragma once

#include <sys/stat.h>

#include <cstdint>

#include "fs/node.h"
#include "fs/tree.h"

namespace wcache {

/// What stat(2) says beyond the tree.
struct StatContext {
  uid_t uid = 0;  ///< the mounter
  gid_t gid = 0;
  std::int64_t started_ns = 0;      ///< mtime of what belongs to no entry, Unix time
  std::uint64_t status_nbytes = 0;  ///< of a status file, as last made
};

struct stat stat_of(const Node& node, const TreeSnapshot& tree, const StatContext& context);

}  // namespace wcache

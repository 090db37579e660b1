#pragma once

#include <optional>
#include <string>
#include <vector>

#include "client/node_status.h"
#include "core/result.h"

namespace wcache {

/// Which groups `wcache wait` is for. All empty: every group that is known.
struct WaitFor {
  std::string role;
  std::string name;
  std::string fingerprint;
};

struct WaitVerdict {
  bool done = false;
  std::vector<std::string> paths;  ///< when done: one a group, "-" where there is no mount
  std::optional<Error> failure;    ///< waiting longer is of no use
  Error missing;                   ///< when not done: not_running, not_found or not_ready
};

/// `mount_coming`: launchers keep a mount, even if no wcachefs answers just now.
WaitVerdict judge(const NodeStatus& node, const WaitFor& what, bool mount_coming);

}  // namespace wcache

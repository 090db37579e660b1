#pragma once

#include <string>

#include "client/node_status.h"

namespace wcache {

/// `wcache status`: the mount, a table of the groups with a line for each rank and each holder, and what went
/// wrong. `now` is Unix time.
std::string status_text(const NodeStatus& node, double now);

/// `wcache ls`: a table with a line for each group.
std::string list_text(const NodeStatus& node);

}  // namespace wcache

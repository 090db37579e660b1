#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "client/node_status.h"
#include "core/mount_table.h"
#include "core/result.h"

namespace wcache {

/// Which group the ENTRY of a command means: a fingerprint, a unique prefix of at least 8 digits, a by-name
/// name (its newest ready group, else its newest), or a path in the tree. `role` is "" for either.
///   not_running  nothing runs at all
///   not_found    nothing of that name
///   invalid      several match; key "--role" where naming a role would tell them apart
Result<GroupStatus> resolve_entry(const NodeStatus& node, std::string_view entry, std::string_view role);

/// An entry by what tells it from all others.
struct ExactEntry {
  std::string role;
  std::string fingerprint;  ///< 32 digits
};

/// The entry that ENTRY names by itself, so that nobody need be asked which it is: a whole fingerprint (its
/// role is `role`, "" for either), or a path by fingerprint in a mounted tree, of which `mounts` tells.
/// nullopt where only resolve_entry can say.
std::optional<ExactEntry> exact_entry(std::string_view entry, std::string_view role,
                                      const std::function<std::vector<MountEntry>()>& mounts);

/// "target/0011..." for messages; the name where the fingerprint is not known.
std::string title_of(const GroupStatus& group);

}  // namespace wcache

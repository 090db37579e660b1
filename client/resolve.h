#pragma once

#include <string>

#include "client/options.h"
#include "core/entry_plan.h"
#include "core/fingerprint.h"
#include "draftroute/group_request.h"

namespace wcache {

/// The key of what `plan` would hold: from the digest cache where the files are unchanged, else by reading
/// them, with progress on standard error. A digest cache that cannot be used is told and done without.
Result<ResolvedKey> resolve_with_progress(const CommandContext& context, const EntryPlan& plan);

/// The key of a whole group, every rank's files in it, and the plan of its first rank.
struct ResolvedGroup {
  ResolvedKey key;
  EntryPlan plan;
};
Result<ResolvedGroup> resolve_group(const CommandContext& context, const draftroute::GroupRequest& request);

/// Where an entry is in the tree of the node, or would be with nothing running.
std::string path_in_tree(const CommandContext& context, Role role, const Fingerprint& fingerprint);

}  // namespace wcache

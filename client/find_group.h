#pragma once

#include <string_view>

#include "client/node_status.h"
#include "core/digest_cache.h"
#include "core/result.h"

namespace wcache {

/// resolve_entry, and beyond it the path of a model on disk: the group that serves the model as it is there
/// now, whole or sharded by rank (not a draft that is a part of it). Only a fingerprint that the digest cache
/// remembers is known: no weights are read. Errors are those of resolve_entry; for a model not_found also
/// where the cache does not remember its files, and whatever open_checkpoint says of it.
Result<GroupStatus> find_group(const NodeStatus& node, std::string_view entry, std::string_view role,
                               const Environment& environment);

}  // namespace wcache

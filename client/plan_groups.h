#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "client/device_choice.h"
#include "core/digest_cache.h"
#include "core/result.h"
#include "daemon/supervisor/plan.h"
#include "draftroute/decision.h"

namespace wcache {

/// A model as it is to be loaded.
struct LoadWish {
  draftroute::RouteRequest route;             ///< MODEL and the key options
  std::optional<std::string> name;            ///< for by-name/, in place of the checkpoint's own
  std::optional<std::uint64_t> memory_limit;  ///< for all groups together, bytes
  NodesPlan nodes;
  DeviceChoice devices = {};  ///< of this node's ranks
};

/// How many ranks of a tensor-parallel size are this node's.
std::uint32_t ranks_on_node(std::uint32_t tp_size, const NodesPlan& nodes);

struct PlannedGroups {
  std::vector<GroupPlan> groups;  ///< the target's, then the draft's where the route says `cache`
  std::string draft_note;         ///< why a draft that was asked for has no group; empty where it has one
  std::string device_note;  ///< why a group is in host memory though the default is a device; empty otherwise
};

/// What this node has to start for MODEL. Reads configs and headers, and asks the cache which fingerprint is
/// remembered. On devices every rank has a daemon, though all may hold the same. What cannot be held on a
/// device is planned for host memory where the device was the default's choice; where it was asked for the
/// target is an error, the draft planned with its refusal. --memory-limit goes to the target first, rank by
/// rank, and what is left to the draft; a group that does not fit is planned with its refusal. Errors: those
/// of the checkpoint, of an invalid speculative config (its key), of a tensor-parallel size the checkpoint is
/// not sharded for.
Result<PlannedGroups> plan_groups(const LoadWish& wish, DigestCache& cache);

}  // namespace wcache

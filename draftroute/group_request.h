#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/entry_plan.h"
#include "core/result.h"
#include "draftroute/decision.h"

namespace wcache::draftroute {

/// A model as it is to be served: MODEL and the key options, which say the same to every command and to the
/// daemons.
struct GroupRequest {
  RouteRequest route;
  Role role = Role::target;
};

/// How many ranks of the group hold bytes of their own, on all nodes together: tp_size for a checkpoint that
/// is sharded by rank, else 1 (one daemon serves every rank from host memory; on devices, each has the same).
Result<std::uint32_t> ranks_with_bytes(const GroupRequest& request);

/// What rank `rank` of the group has to hold: the one place that turns a request into a plan. For role draft0
/// without a speculative config, MODEL itself is the draft. Reads headers only. Reason::unsupported, with the
/// route's reason, for a draft that is not cached.
Result<EntryPlan> plan_group_rank(const GroupRequest& request, std::uint32_t rank);

}  // namespace wcache::draftroute

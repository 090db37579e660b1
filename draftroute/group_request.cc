#include "draftroute/group_request.h"

#include <utility>

#include "core/checkpoint/checkpoint.h"

namespace wcache::draftroute {
namespace {

Result<EntryPlan> plan_routed_draft(const GroupRequest& request, std::uint32_t rank) {
  std::optional<EntryPlan> plan;
  Result<Decision> decision = route(request.route, &plan);
  if (!decision) return fail(std::move(decision.error()));
  if (!plan)
    return fail(Reason::unsupported, "the draft is not cached: " + decision->reason, {},
                "speculative-config");
  plan->rank = rank;
  return std::move(*plan);
}

}  // namespace

Result<std::uint32_t> ranks_with_bytes(const GroupRequest& request) {
  if (request.role != Role::target) return 1;
  const Result<Checkpoint> checkpoint = open_checkpoint(request.route.target);
  if (!checkpoint) return fail(checkpoint.error());
  return shard_ranks(*checkpoint) > 0 ? request.route.tp_size : 1;
}

Result<EntryPlan> plan_group_rank(const GroupRequest& request, std::uint32_t rank) {
  if (request.role != Role::target && request.route.speculative) return plan_routed_draft(request, rank);
  Result<Checkpoint> checkpoint = open_checkpoint(request.route.target);
  if (!checkpoint) return fail(std::move(checkpoint.error()));
  if (shard_ranks(*checkpoint) > 0)
    return plan_rank(std::move(*checkpoint), request.role, rank, request.route.tp_size);
  EntryPlan plan = plan_checkpoint(std::move(*checkpoint), request.role);
  plan.rank = rank;
  return plan;
}

}  // namespace wcache::draftroute

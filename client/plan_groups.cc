#include "client/plan_groups.h"

#include <algorithm>
#include <utility>

#include "core/fingerprint.h"
#include "daemon/budget.h"
#include "daemon/memory/arena.h"
#include "daemon/rendezvous/rendezvous.h"
#include "draftroute/group_request.h"
#include "draftroute/key_options.h"

namespace wcache {
namespace {

/// What --memory-limit leaves after the ranks that were planned before.
class Allowance {
 public:
  explicit Allowance(std::optional<std::uint64_t> limit) : limit_(limit), left_(limit.value_or(0)) {}

  /// Takes a rank's share; the error of a group that does not fit any more.
  Status take(RankPlan& rank) {
    if (!limit_) return {};
    const MemoryLimit limit{"--memory-limit", *limit_, left_, "raise --memory-limit, or evict entries",
                            "--memory-limit"};
    if (Status fits = check_budget(rank.memory, std::nullopt, {limit}); !fits) return fits;
    rank.memory_limit = left_;
    left_ -= rank.memory;
    return {};
  }

 private:
  std::optional<std::uint64_t> limit_;
  std::uint64_t left_;
};

/// The ranks of a group with `ranks` daemons on all nodes together that this node starts.
std::vector<RankPlan> own_ranks(std::uint32_t ranks, const NodesPlan& nodes) {
  const bool shared = !nodes.single() && ranks > 1;
  const std::uint32_t count = shared ? ranks / nodes.count : ranks;
  const std::uint32_t first = shared ? nodes.rank * count : 0;
  std::vector<RankPlan> own;
  for (std::uint32_t rank = first; rank < first + count; ++rank)
    own.push_back({rank, "HOST-" + std::to_string(rank)});
  return own;
}

/// What the digest cache knows without a byte being read; empty when it does not.
std::string remembered_fingerprint(const std::vector<EntryPlan>& plans, DigestCache& cache) {
  std::vector<Key> parts;
  std::vector<std::string> labels;
  for (const EntryPlan& plan : plans) {
    std::optional<Key> key = remembered_key(plan, cache);
    if (!key) return {};
    parts.push_back(std::move(*key));
    labels.push_back("rank " + std::to_string(plan.rank));
  }
  const Result<Key> key = merge_parts(parts, labels);
  return key ? to_hex(key->fingerprint()) : "";
}

/// The group whose ranks on this node hold `plans`.
GroupPlan group_of(const LoadWish& wish, const std::vector<EntryPlan>& plans, std::vector<RankPlan> ranks,
                   Allowance& allowance, DigestCache& cache) {
  const EntryPlan& first = plans.front();
  GroupPlan group;
  group.role = first.role;
  group.model = wish.route.target;
  group.key_words = draftroute::KeyOptions::arguments(wish.route);
  group.source = first.source;
  group.name = first.name;
  group.layout = first.layout;
  group.tp_size = first.tp_size;
  group.port = first.role == Role::target ? wish.nodes.port : wish.nodes.draft_port;
  group.ranks = std::move(ranks);
  // What the other nodes hold is known only when they have said so.
  if (wish.nodes.single()) group.fingerprint = remembered_fingerprint(plans, cache);
  for (std::size_t i = 0; i < plans.size(); ++i) {
    group.nbytes += plans[i].nbytes();
    group.ranks[i].memory = arena_nbytes(plans[i]);
    if (Status fits = allowance.take(group.ranks[i]); !fits && !group.refusal) group.refusal = fits.error();
  }
  return group;
}

Result<GroupPlan> plan_target(const LoadWish& wish, Allowance& allowance, DigestCache& cache) {
  const draftroute::GroupRequest request{wish.route, Role::target};
  const Result<std::uint32_t> count = draftroute::ranks_with_bytes(request);
  if (!count) return fail(count.error());
  std::vector<RankPlan> ranks = own_ranks(*count, wish.nodes);
  std::vector<EntryPlan> plans;
  for (const RankPlan& rank : ranks) {
    Result<EntryPlan> plan = draftroute::plan_group_rank(request, rank.rank);
    if (!plan) return fail(std::move(plan.error()));
    plans.push_back(std::move(*plan));
  }
  GroupPlan group = group_of(wish, plans, std::move(ranks), allowance, cache);
  if (wish.name) group.name = *wish.name;
  return group;
}

}  // namespace

Result<PlannedGroups> plan_groups(const LoadWish& wish, DigestCache& cache) {
  PlannedGroups planned;
  Allowance allowance(wish.memory_limit);
  Result<GroupPlan> target = plan_target(wish, allowance, cache);
  if (!target) return fail(std::move(target.error()));
  planned.groups.push_back(std::move(*target));

  std::optional<EntryPlan> draft;
  const Result<draftroute::Decision> decision = draftroute::route(wish.route, &draft);
  if (!decision) return fail(decision.error());
  if (draft) {
    std::vector<EntryPlan> plans;
    plans.push_back(std::move(*draft));
    GroupPlan group = group_of(wish, plans, own_ranks(1, wish.nodes), allowance, cache);
    if (wish.name && decision->inside_target) group.name = *wish.name;
    planned.groups.push_back(std::move(group));
  } else if (wish.route.speculative || decision->kind != draftroute::DecisionKind::none) {
    planned.draft_note =
        "no draft0 group (" + std::string(to_string(decision->kind)) + "): " + decision->reason;
  }
  return planned;
}

}  // namespace wcache

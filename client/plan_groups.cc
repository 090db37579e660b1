#include "client/plan_groups.h"

#include <algorithm>
#include <utility>

#include "core/fingerprint.h"
#include "core/slab_plan.h"
#include "daemon/budget.h"
#include "daemon/memory/arena.h"
#include "daemon/rendezvous/rendezvous.h"
#include "draftroute/group_request.h"
#include "draftroute/key_options.h"

namespace wcache {
namespace {

// What a rank on a device takes is asked of its driver by the daemon alone; this is what it comes to there.
constexpr std::uint64_t kUsualGranularity = std::uint64_t{2} << 20;

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

/// The ranks of a group with `ranks` daemons on all nodes together that this node starts: on these devices,
/// or in host memory without any.
std::vector<RankPlan> own_ranks(std::uint32_t ranks, const NodesPlan& nodes,
                                const std::vector<ChosenDevice>& devices) {
  const std::uint32_t count = ranks_on_node(ranks, nodes);
  const std::uint32_t first = count < ranks ? nodes.rank * count : 0;
  std::vector<RankPlan> own;
  for (std::uint32_t i = 0; i < count; ++i) {
    RankPlan& rank = own.emplace_back();
    rank.rank = first + i;
    rank.device_uuid = devices.empty() ? "HOST-" + std::to_string(rank.rank) : devices.at(i).uuid;
    if (!devices.empty()) rank.ipc = devices.at(i).ipc;
  }
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

/// Fills in what the rank takes. unsupported where its device cannot hold the plan.
Status measure(RankPlan& rank, const EntryPlan& plan) {
  rank.memory = arena_nbytes(plan, !rank.ipc);
  if (!rank.ipc) return {};
  const Result<SlabPlan> slabs = plan_slabs(plan, kUsualGranularity, kSlabNbytes, kMostSlabs);
  if (!slabs) return fail(slabs.error());
  rank.device_memory = slabs->nbytes();
  rank.memory += rank.device_memory;
  return {};
}

/// The group whose ranks on this node hold `plans`.
Result<GroupPlan> group_of(const LoadWish& wish, const std::vector<EntryPlan>& plans,
                           std::vector<RankPlan> ranks, Allowance& allowance, DigestCache& cache) {
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
    if (Status measured = measure(group.ranks[i], plans[i]); !measured) return fail(measured.error());
  }
  for (RankPlan& rank : group.ranks) {
    if (Status fits = allowance.take(rank); !fits && !group.refusal) group.refusal = fits.error();
  }
  return group;
}

/// Plans a group for the devices, and where it is none for them but they are only the default, for host
/// memory.
template <class Plan>
Result<GroupPlan> plan_on(const DeviceChoice& choice, std::string& note, const Plan& plan) {
  Result<GroupPlan> group = plan(choice.devices);
  if (group || !choice.on_device() || choice.asked || group.error().reason != Reason::unsupported)
    return group;
  if (choice.ipc)
    return fail(Reason::invalid,
                "--ipc is for CUDA devices, and there is none to use: " + group.error().message,
                "leave --ipc out", "--ipc");
  Result<GroupPlan> in_host = plan(std::vector<ChosenDevice>());
  if (in_host)
    note =
        std::string(to_string(in_host->role)) + " weights are held in host memory: " + group.error().message;
  return in_host;
}

Result<GroupPlan> plan_target(const LoadWish& wish, const std::vector<ChosenDevice>& devices,
                              Allowance& allowance, DigestCache& cache) {
  const draftroute::GroupRequest request{wish.route, Role::target};
  const Result<std::uint32_t> count = draftroute::ranks_with_bytes(request);
  if (!count) return fail(count.error());
  std::vector<RankPlan> ranks = own_ranks(devices.empty() ? *count : wish.route.tp_size, wish.nodes, devices);
  std::vector<EntryPlan> plans;
  for (const RankPlan& rank : ranks) {
    Result<EntryPlan> plan = draftroute::plan_group_rank(request, rank.rank);
    if (!plan) return fail(std::move(plan.error()));
    plans.push_back(std::move(*plan));
  }
  Result<GroupPlan> group = group_of(wish, plans, std::move(ranks), allowance, cache);
  if (group && wish.name) group->name = *wish.name;
  return group;
}

Result<GroupPlan> plan_draft(const LoadWish& wish, const std::vector<ChosenDevice>& devices,
                             const EntryPlan& draft, Allowance& allowance, DigestCache& cache) {
  std::vector<RankPlan> ranks = own_ranks(devices.empty() ? 1 : wish.route.tp_size, wish.nodes, devices);
  std::vector<EntryPlan> plans;
  for (const RankPlan& rank : ranks) plans.emplace_back(draft).rank = rank.rank;
  return group_of(wish, plans, std::move(ranks), allowance, cache);
}

/// A draft that the devices which were asked for cannot hold: the target is served all the same.
GroupPlan refused_draft(const LoadWish& wish, const EntryPlan& draft, const Error& error) {
  GroupPlan group;
  group.role = draft.role;
  group.model = wish.route.target;
  group.source = draft.source;
  group.name = draft.name;
  group.ranks = own_ranks(wish.route.tp_size, wish.nodes, wish.devices.devices);
  group.port = wish.nodes.draft_port;
  group.refusal = error;
  return group;
}

}  // namespace

std::uint32_t ranks_on_node(std::uint32_t tp_size, const NodesPlan& nodes) {
  return nodes.single() || tp_size == 1 ? tp_size : tp_size / nodes.count;
}

Result<PlannedGroups> plan_groups(const LoadWish& wish, DigestCache& cache) {
  PlannedGroups planned;
  Allowance allowance(wish.memory_limit);
  Result<GroupPlan> target = plan_on(wish.devices, planned.device_note, [&](const auto& devices) {
    return plan_target(wish, devices, allowance, cache);
  });
  if (!target) return fail(std::move(target.error()));
  planned.groups.push_back(std::move(*target));

  std::optional<EntryPlan> draft;
  const Result<draftroute::Decision> decision = draftroute::route(wish.route, &draft);
  if (!decision) return fail(decision.error());
  if (draft) {
    Result<GroupPlan> group = plan_on(wish.devices, planned.device_note, [&](const auto& devices) {
      return plan_draft(wish, devices, *draft, allowance, cache);
    });
    if (!group) group = refused_draft(wish, *draft, group.error());
    if (wish.name && decision->inside_target) group->name = *wish.name;
    planned.groups.push_back(std::move(*group));
  } else if (wish.route.speculative || decision->kind != draftroute::DecisionKind::none) {
    planned.draft_note =
        "no draft0 group (" + std::string(to_string(decision->kind)) + "): " + decision->reason;
  }
  return planned;
}

}  // namespace wcache

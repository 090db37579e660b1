#include "client/located_draft.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "client/mount_default.h"
#include "client/node_status.h"
#include "core/slab_plan.h"
#include "ipc/run_dir.h"

namespace wcache {
namespace {

/// The draft group of this fingerprint, or the one that is still on its way to it.
const GroupStatus* find_draft(const NodeStatus& node, const std::string& fingerprint,
                              const std::string& source) {
  for (const GroupStatus& group : node.groups)
    if (group.role == to_string(Role::draft0) && group.fingerprint == fingerprint) return &group;
  for (const GroupStatus& group : node.groups)
    if (group.role == to_string(Role::draft0) && group.fingerprint.empty() && group.source == source)
      return &group;
  return nullptr;
}

/// Where a draft would be that nobody serves: in host memory one daemon holds it for every rank.
std::vector<std::string> default_devices(const EntryPlan& plan, std::uint32_t ranks,
                                         const AskDevices& devices) {
  const Result<DeviceChoice> choice = choose_devices(DeviceWish{}, ranks, devices);
  const bool fits =
      choice && choice->on_device() && plan_slabs(plan, kSlabAlignment, kSlabNbytes, kMostSlabs);
  if (!fits) return {"HOST-0"};
  std::vector<std::string> uuids;
  for (const ChosenDevice& device : choice->devices) uuids.push_back(device.uuid);
  return uuids;
}

}  // namespace

Result<LocatedDraft> locate_draft(const draftroute::RouteRequest& request, std::string_view run_dir,
                                  bool no_read, const ResolvePlan& resolve, const AskDevices& devices) {
  std::optional<EntryPlan> plan;
  Result<draftroute::Decision> decision =
      no_read ? draftroute::decide(request) : draftroute::route(request, &plan);
  if (!decision) return fail(std::move(decision.error()));
  LocatedDraft located;
  located.decision = std::move(*decision);
  if (!plan) return located;
  const Result<ResolvedKey> resolved = resolve(*plan);
  if (!resolved) return fail(resolved.error());
  const Fingerprint fingerprint = resolved->key.fingerprint();
  const Result<NodeStatus> node = collect_status(run_dir);
  if (!node) return fail(node.error());
  located.fingerprint = to_hex(fingerprint);
  located.path = path_in_tree(node->mount, run_dir, Role::draft0, fingerprint);
  std::vector<std::string> uuids;
  if (const GroupStatus* group = find_draft(*node, located.fingerprint, plan->source)) {
    located.state = to_string(group->state);
    for (const RankStatus& rank : group->ranks) uuids.push_back(rank.device_uuid);
  } else {
    located.state = to_string(Reason::not_running);
    uuids = default_devices(*plan, request.tp_size, devices);
  }
  for (const std::string& uuid : uuids)
    located.sockets.push_back(std::string(run_dir) + "/" + rank_socket_name(Role::draft0, fingerprint, uuid));
  return located;
}

std::string to_json(const LocatedDraft& located) {
  const draftroute::Decision& decision = located.decision;
  nlohmann::ordered_json out;
  const auto add = [&](const char* key, const std::string& value) {
    if (!value.empty()) out[key] = value;
  };
  out["decision"] = to_string(decision.kind);
  add("method", decision.method);
  if (decision.kind == draftroute::DecisionKind::cache) out["role"] = to_string(Role::draft0);
  add("model", decision.model);
  add("architecture", decision.architecture);
  if (!decision.method.empty()) out["tp_size"] = decision.tp_size;
  if (decision.num_mtp_layers) out["num_mtp_layers"] = *decision.num_mtp_layers;
  add("load_format", decision.load_format);
  out["reason"] = decision.reason;
  add("fingerprint", located.fingerprint);
  add("path", located.path);
  if (!located.sockets.empty()) out["socket"] = located.sockets.front();
  if (!located.sockets.empty()) out["sockets"] = located.sockets;
  add("state", located.state);
  return out.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace wcache

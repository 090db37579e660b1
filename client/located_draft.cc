#include "client/located_draft.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "client/mount_default.h"
#include "client/node_status.h"
#include "ipc/run_dir.h"

namespace wcache {
namespace {

// An MTP draft is never sharded: one daemon of its group serves every rank.
constexpr const char* kDraftDevice = "HOST-0";

/// The state of the draft group of this fingerprint, or of the one that is still on its way to it.
std::string state_on(const NodeStatus& node, const std::string& fingerprint, const std::string& source) {
  for (const GroupStatus& group : node.groups)
    if (group.role == to_string(Role::draft0) && group.fingerprint == fingerprint)
      return std::string(to_string(group.state));
  for (const GroupStatus& group : node.groups)
    if (group.role == to_string(Role::draft0) && group.fingerprint.empty() && group.source == source)
      return std::string(to_string(group.state));
  return std::string(to_string(Reason::not_running));
}

}  // namespace

Result<LocatedDraft> locate_draft(const draftroute::RouteRequest& request, std::string_view run_dir,
                                  bool no_read, const ResolvePlan& resolve) {
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
  located.socket = std::string(run_dir) + "/" + rank_socket_name(Role::draft0, fingerprint, kDraftDevice);
  located.state = state_on(*node, located.fingerprint, plan->source);
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
  add("socket", located.socket);
  if (!located.socket.empty()) out["sockets"] = {located.socket};
  add("state", located.state);
  return out.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace wcache

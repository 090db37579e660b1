#include "client/node_status_json.h"

#include <nlohmann/json.hpp>

#include "core/version.h"

namespace wcache {
namespace {

using Json = nlohmann::ordered_json;

void put(Json& object, const char* name, const std::string& value) {
  if (!value.empty()) object[name] = value;
}

Json json_of(const Error& error) {
  Json object = {{"reason", to_string(error.reason)}, {"message", error.message}, {"hint", error.hint}};
  object["key"] = error.key;
  return object;
}

Json json_of(const Holder& holder) {
  Json object = {{"pid", holder.pid}};
  put(object, "command", holder.command);
  if (holder.since > 0) object["since"] = holder.since;
  return object;
}

Json json_of(const RankStatus& rank) {
  Json object = {{"rank", rank.rank}, {"state", to_string(rank.state)}};
  if (rank.pid != 0) object["pid"] = rank.pid;
  put(object, "device_uuid", rank.device_uuid);
  put(object, "tier", rank.tier);
  put(object, "pages", rank.pages);
  put(object, "socket", rank.socket);
  if (rank.nbytes > 0) {
    object["nbytes"] = rank.nbytes;
    object["filled"] = rank.filled;
  }
  if (rank.rate > 0) object["rate"] = rank.rate;
  put(object, "fill_path", rank.fill_path);
  if (rank.state == State::ready || rank.state == State::orphaned) object["survives"] = rank.survives;
  if (rank.tier == "cuda") {
    put(object, "ipc_kind", rank.ipc_kind);
    object["cuda_context"] = rank.context;
    object["device_nbytes"] = rank.device_nbytes;
  }
  return object;
}

Json json_of(const GroupStatus& group) {
  Json object = {{"role", group.role}};
  put(object, "name", group.name);
  put(object, "fingerprint", group.fingerprint);
  object["state"] = to_string(group.state);
  put(object, "reason", group.reason);
  put(object, "message", group.message);
  put(object, "hint", group.hint);
  put(object, "path", group.path);
  put(object, "draft", group.draft);
  put(object, "target", group.target);
  put(object, "layout", group.layout);
  put(object, "source", group.source);
  if (group.nbytes > 0) {
    object["nbytes"] = group.nbytes;
    object["tensors"] = group.tensors;
  }
  if (group.tp_size > 0) object["tp_size"] = group.tp_size;
  if (group.since > 0) object["since"] = group.since;
  object["holders"] = Json::array();
  for (const Holder& holder : group.holders) object["holders"].push_back(json_of(holder));
  if (!group.holders_complete) object["holders_complete"] = false;
  object["ranks"] = Json::array();
  for (const RankStatus& rank : group.ranks) object["ranks"].push_back(json_of(rank));
  return object;
}

Json json_of(const MountStatus& mount) {
  Json object = {{"path", mount.path}};
  if (mount.pid != 0) object["pid"] = mount.pid;
  object["passthrough"] = mount.passthrough;
  put(object, "reason", mount.reason);
  return object;
}

/// Names of files and commands need not be UTF-8; JSON must be.
std::string text_of(const Json& object) {
  return object.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace

std::string to_json(const NodeStatus& node, const Error* error) {
  Json object = {{"version", version()}, {"protocol", kMaxProtocolVersion}, {"run_dir", node.run_dir}};
  if (node.mount) object["mount"] = json_of(*node.mount);
  object["groups"] = Json::array();
  for (const GroupStatus& group : node.groups) object["groups"].push_back(json_of(group));
  if (!node.launchers.empty()) object["launchers"] = node.launchers;
  if (!node.silent.empty()) object["silent"] = node.silent;
  if (error != nullptr) object["error"] = json_of(*error);
  return text_of(object);
}

std::string to_json(const Error& error) {
  return text_of(Json{{"error", json_of(error)}});
}

std::string node_status_json(std::string_view run_dir, std::chrono::milliseconds deadline) {
  const Result<NodeStatus> node = collect_status(run_dir, deadline);
  if (node) return to_json(*node);
  NodeStatus none;
  none.run_dir = run_dir;
  return to_json(none, &node.error());
}

}  // namespace wcache

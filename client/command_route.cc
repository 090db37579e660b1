#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "client/commands.h"
#include "client/node_status.h"
#include "client/resolve.h"
#include "core/format.h"
#include "draftroute/decision.h"
#include "draftroute/key_options.h"
#include "draftroute/speculative_config.h"
#include "ipc/run_dir.h"

namespace wcache {
namespace {

using draftroute::Decision;
using draftroute::DecisionKind;
using draftroute::RouteRequest;

// An MTP draft is never sharded: one daemon of its group serves every rank.
constexpr const char* kDraftDevice = "HOST-0";
constexpr const char* kSpeculativeConfig = "speculative-config";

struct RouteOptions {
  std::string model;
  draftroute::KeyOptions key;
  std::string print;
  bool no_read = false;
  bool json = false;
};

/// A decision, and where the node has what it is about.
struct Located {
  Decision decision;
  std::string fingerprint;
  std::string path;
  std::string socket;
  std::string state;  ///< of the group; "not-running" without one
};

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

Status locate(const CommandContext& context, const EntryPlan& plan, Located& located) {
  const Result<ResolvedKey> resolved = resolve_with_progress(context, plan);
  if (!resolved) return fail(resolved.error());
  const Fingerprint fingerprint = resolved->key.fingerprint();
  const Result<std::string> run_dir = context.run_dir();
  if (!run_dir) return fail(run_dir.error());
  const Result<NodeStatus> node = collect_status(*run_dir);
  if (!node) return fail(node.error());
  located.fingerprint = to_hex(fingerprint);
  located.path = path_in_tree(context, Role::draft0, fingerprint);
  located.socket = *run_dir + "/" + rank_socket_name(Role::draft0, fingerprint, kDraftDevice);
  located.state = state_on(*node, located.fingerprint, plan.source);
  return {};
}

Result<Located> find(const CommandContext& context, const RouteRequest& request, bool no_read) {
  Located located;
  if (no_read) {
    Result<Decision> decision = draftroute::decide(request);
    if (!decision) return fail(std::move(decision.error()));
    located.decision = std::move(*decision);
    return located;
  }
  std::optional<EntryPlan> plan;
  Result<Decision> decision = draftroute::route(request, &plan);
  if (!decision) return fail(std::move(decision.error()));
  located.decision = std::move(*decision);
  if (!plan) return located;
  if (Status found = locate(context, *plan, located); !found) return fail(found.error());
  return located;
}

std::string json_text(const Located& located) {
  const Decision& decision = located.decision;
  nlohmann::ordered_json out;
  const auto add = [&](const char* key, const std::string& value) {
    if (!value.empty()) out[key] = value;
  };
  out["decision"] = to_string(decision.kind);
  add("method", decision.method);
  if (decision.kind == DecisionKind::cache) out["role"] = to_string(Role::draft0);
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

std::string line_text(const Located& located) {
  const Decision& decision = located.decision;
  std::string out(to_string(decision.kind));
  if (!decision.method.empty()) out += ": " + decision.method;
  if (!located.path.empty()) out += " at " + printable(located.path) + " (" + located.state + ")";
  return out + ": " + printable(decision.reason) + "\n";
}

/// The speculative config for the engine: with the mounted draft where there is one, else as it was given.
Result<std::string> config_text(const CommandContext& context, const RouteRequest& request,
                                const Located& located) {
  if (!request.speculative)
    return fail(Reason::invalid, "there is no speculative config to print", "give --speculative-config",
                "--speculative-config");
  if (located.decision.kind != DecisionKind::cache) {
    print(context.err, "wcache: the draft is not served: " + printable(located.decision.reason) + "\n");
    return *request.speculative + "\n";
  }
  if (located.path.empty())
    return fail(Reason::invalid, "without reading there is no path to print", "leave --no-read out",
                "--no-read");
  if (located.state != to_string(State::ready))
    print(context.err,
          "wcache: the draft's directory is not there yet: its group is " + located.state + "\n");
  return draftroute::with_model(*request.speculative, located.path) + "\n";
}

Result<int> run_route(const CommandContext& context, const RouteOptions& options) {
  if (!options.print.empty() && options.print != kSpeculativeConfig)
    return fail(Reason::invalid, "'" + printable(options.print) + "' cannot be printed",
                "--print takes speculative-config", "--print");
  const Result<RouteRequest> request = options.key.request(options.model);
  if (!request) return fail(request.error());
  const Result<Located> located = find(context, *request, options.no_read);
  if (!located) return fail(located.error());
  if (options.print.empty()) {
    print(context.out, options.json ? json_text(*located) : line_text(*located));
    return 0;
  }
  const Result<std::string> text = config_text(context, *request, *located);
  if (!text) return fail(text.error());
  print(context.out, *text);
  return 0;
}

}  // namespace

Command add_route(CLI::App& app, CommandContext& context) {
  CLI::App* command = add_command(app, context, "route",
                                  "Decides which group serves the draft of an engine that runs MODEL with "
                                  "--speculative-config, or says why none does.");
  const auto options = std::make_shared<RouteOptions>();
  command->add_option("model", options->model, "The target's directory, as the engine is given it.")
      ->type_name("MODEL")
      ->required();
  options->key.add_to(*command);
  command->add_flag("--no-read", options->no_read,
                    "Decide from configs alone: no headers, no fingerprint, no path.");
  CLI::Option* json = command->add_flag("--json", options->json, "Print JSON for programs.");
  command
      ->add_option(
          "--print", options->print,
          "Print this instead of the decision: speculative-config, the object given with its model replaced "
          "by the mounted draft's path.")
      ->type_name("WHAT")
      ->excludes(json);
  return {command, [&context, options] { return run_route(context, *options); },
          [options] { return options->json; }};
}

}  // namespace wcache

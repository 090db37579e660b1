#include <CLI/CLI.hpp>
#include <memory>
#include <utility>

#include "client/commands.h"
#include "client/located_draft.h"
#include "client/resolve.h"
#include "core/format.h"
#include "daemon/supervisor/device_probe.h"
#include "draftroute/decision.h"
#include "draftroute/key_options.h"
#include "draftroute/speculative_config.h"
#include "ipc/protocol.h"

namespace wcache {
namespace {

using draftroute::Decision;
using draftroute::DecisionKind;
using draftroute::RouteRequest;

constexpr const char* kSpeculativeConfig = "speculative-config";

struct RouteOptions {
  std::string model;
  draftroute::KeyOptions key;
  std::string print;
  bool no_read = false;
  bool json = false;
};

std::string line_text(const LocatedDraft& located) {
  const Decision& decision = located.decision;
  std::string out(to_string(decision.kind));
  if (!decision.method.empty()) out += ": " + decision.method;
  if (!located.path.empty()) out += " at " + printable(located.path) + " (" + located.state + ")";
  return out + ": " + printable(decision.reason) + "\n";
}

/// The speculative config for the engine: with the mounted draft where there is one, else as it was given.
Result<std::string> config_text(const CommandContext& context, const RouteRequest& request,
                                const LocatedDraft& located) {
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
  const Result<std::string> run_dir = context.run_dir();
  if (!run_dir) return fail(run_dir.error());
  const Result<LocatedDraft> located = locate_draft(
      *request, *run_dir, options.no_read,
      [&](const EntryPlan& plan) { return resolve_with_progress(context, plan); },
      [](const DeviceView& view) { return machine_probe().run(view); });
  if (!located) return fail(located.error());
  if (options.print.empty()) {
    print(context.out, options.json ? to_json(*located) : line_text(*located));
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

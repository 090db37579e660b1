#include <CLI/CLI.hpp>
#include <memory>

#include "client/commands.h"
#include "client/node_status.h"
#include "client/node_status_json.h"
#include "client/status_text.h"
#include "daemon/supervisor/group.h"

namespace wcache {
namespace {

Error nothing_runs(const NodeStatus& node) {
  return Error{Reason::not_running, "nothing runs in " + node.run_dir,
               "start something with wcache preload, or name another --run-dir"};
}

Result<int> run_status(const CommandContext& context, bool json) {
  const Result<std::string> run_dir = context.run_dir();
  if (!run_dir) return fail(run_dir.error());
  const Result<NodeStatus> node = collect_status(*run_dir);
  if (!node) return fail(node.error());
  if (!node->groups.empty()) {
    print(context.out, json ? to_json(*node) : status_text(*node, unix_time()));
    return 0;
  }
  const Error error = nothing_runs(*node);
  if (json) {
    print(context.out, to_json(*node, &error));
  } else if (node->mount) {
    print(context.out, status_text(*node, unix_time()));
  }
  print(context.err, error_text(error));
  return exit_code(error.reason);
}

Result<int> run_ls(const CommandContext& context) {
  const Result<std::string> run_dir = context.run_dir();
  if (!run_dir) return fail(run_dir.error());
  const Result<NodeStatus> node = collect_status(*run_dir);
  if (!node) return fail(node.error());
  if (node->groups.empty()) return fail(nothing_runs(*node));
  print(context.out, list_text(*node));
  return 0;
}

}  // namespace

Command add_status(CLI::App& app, CommandContext& context) {
  CLI::App* command =
      add_command(app, context, "status",
                  "Shows the groups of daemons that are known on this node, their ranks, states, sizes, "
                  "holders and age, and the mount. With nothing running the exit code is 3.");
  const auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "Print JSON for programs.");
  return {command, [&context, json] { return run_status(context, *json); }, [json] { return *json; }};
}

Command add_ls(CLI::App& app, CommandContext& context) {
  CLI::App* command =
      add_command(app, context, "ls",
                  "Lists the groups, one a line: role, fingerprint, state, size and name. With nothing "
                  "running the exit code is 3.");
  return {command, [&context] { return run_ls(context); }};
}

}  // namespace wcache

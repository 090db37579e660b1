#include <signal.h>

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "client/commands.h"
#include "client/node_status_json.h"
#include "core/help.h"
#include "core/version.h"
#include "daemon/supervisor/launcher.h"

namespace wcache {
namespace {

int report(const CommandContext& context, const Error& error, bool json) {
  if (json) print(context.out, to_json(error));
  print(context.err, error_text(error));
  return exit_code(error.reason);
}

bool asks_for_json(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--json") return true;
  }
  return false;
}

int usage_error(const CommandContext& context, const CLI::App& app, const CLI::ParseError& error, int argc,
                char** argv) {
  const bool json = asks_for_json(argc, argv);
  std::string command = "wcache";
  for (const CLI::App* chosen : app.get_subcommands()) command += " " + chosen->get_name();
  if (app.get_subcommands().empty() && argc > 1 && argv[1][0] != '-')
    return report(context,
                  Error{Reason::invalid, "there is no command '" + std::string(argv[1]) + "'",
                        "wcache --help lists the commands"},
                  json);
  return report(context,
                Error{Reason::invalid, error.what(), command + " --help shows the usage", key_of(error)},
                json);
}

int run(const CommandContext& context, const std::vector<Command>& commands) {
  for (const Command& command : commands) {
    if (!command.app->parsed()) continue;
    const bool json = command.json && command.json();
    if (const Status checked = context.common.check(); !checked)
      return report(context, checked.error(), json);
    try {
      const Result<int> code = command.run();
      return code ? *code : report(context, code.error(), json);
    } catch (const std::exception& failure) {
      return report(context, Error{Reason::internal, std::string("unexpected: ") + failure.what()}, json);
    }
  }
  return exit_code(Reason::internal);
}

int run_main(int argc, char** argv) {
  CommandContext context;
  context.environment = RunDir::process_environment;
  const Result<StopSignals> signals = StopSignals::open();
  if (!signals) return report(context, signals.error(), false);

  CLI::App app("Keeps the weights of models in memory and shows them as files.", "wcache");
  app.formatter(std::make_shared<HelpFormatter>());
  app.require_subcommand(1);
  app.set_help_flag("--help", "Print this help.");
  app.set_version_flag("--version", std::string(version()), "Print the version.");
  std::vector<Command> commands;
  commands.push_back(add_preload(app, context, *signals));
  CLI::App* const preload = commands.back().app;
  commands.push_back(add_wait(app, context));
  commands.push_back(add_status(app, context));
  commands.push_back(add_ls(app, context));
  commands.push_back(add_fingerprint(app, context));
  commands.push_back(add_route(app, context));
  commands.push_back(add_verify(app, context));
  commands.push_back(add_evict(app, context));
  commands.push_back(add_doctor(app, context));
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {  // --help, --version
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    return usage_error(context, app, error, argc, argv);
  }
  if (!preload->parsed()) StopSignals::unblock();
  return run(context, commands);
}

}  // namespace
}  // namespace wcache

int main(int argc, char** argv) {
  wcache::StopSignals::block();
  return wcache::run_main(argc, argv);
}

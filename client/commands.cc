#include "client/commands.h"

#include <CLI/CLI.hpp>

namespace wcache {

CLI::App* add_command(CLI::App& app, CommandContext& context, const char* name, const char* description) {
  CLI::App* command = app.add_subcommand(name, description);
  command
      ->add_option("--run-dir", context.common.run_dir,
                   "Directory where the processes of a node find each other. Default: $WCACHE_RUN_DIR, else "
                   "/run/wcache "
                   "for root, else $XDG_RUNTIME_DIR/wcache.")
      ->type_name("DIR");
  command
      ->add_option(
          "--log-level", context.common.log_level,
          "How much is logged: trace, debug, info, warning, error or off. Default: info; warning where a "
          "launcher writes to a terminal.")
      ->type_name("LEVEL");
  return command;
}

}  // namespace wcache

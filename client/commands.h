#pragma once

#include "client/options.h"

namespace wcache {

class StopSignals;

// Each adds its command to the command line. `context` (and `signals`) are borrowed for as long as the
// command may run.
Command add_preload(CLI::App& app, CommandContext& context, const StopSignals& signals);
Command add_wait(CLI::App& app, CommandContext& context);
Command add_status(CLI::App& app, CommandContext& context);
Command add_ls(CLI::App& app, CommandContext& context);
Command add_fingerprint(CLI::App& app, CommandContext& context);
Command add_route(CLI::App& app, CommandContext& context);
Command add_verify(CLI::App& app, CommandContext& context);
Command add_evict(CLI::App& app, CommandContext& context);
Command add_doctor(CLI::App& app, CommandContext& context);

/// A command with the options that every command has.
CLI::App* add_command(CLI::App& app, CommandContext& context, const char* name, const char* description);

}  // namespace wcache

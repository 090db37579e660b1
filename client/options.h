#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "core/result.h"
#include "ipc/run_dir.h"

namespace CLI {
class App;
}

namespace wcache {

/// What every command takes.
struct CommonOptions {
  std::string run_dir;    ///< empty: not given
  std::string log_level;  ///< empty: not given

  /// The run directory: the option, else the environment's, else the default. The environment is looked up by
  /// `variable`.
  Result<std::string> run_dir_path(const RunDir::Environment& variable) const;

  /// invalid, key "--log-level", for a word that is none.
  Status check() const;
};

/// One command as the command line knows it.
struct Command {
  CLI::App* app = nullptr;
  /// The exit code; an error is printed by who calls, and its reason is the exit code.
  std::function<Result<int>()> run;
  /// Whether --json was given; empty for commands without it.
  std::function<bool()> json = {};
};

/// What a command needs from its process. Outlives the commands.
struct CommandContext {
  CommonOptions common;
  RunDir::Environment environment;
  int out = 1;  ///< descriptors, borrowed
  int err = 2;

  Result<std::string> run_dir() const { return common.run_dir_path(environment); }
};

/// Whole text on a descriptor; write errors are ignored.
void print(int fd, const std::string& text);

/// "wcache: <message>" and its hint, for standard error.
std::string error_text(const Error& error);

/// A number of seconds as users write it: whole, 0 or more. invalid with `key` otherwise.
Result<std::chrono::seconds> parse_seconds(const std::string& text, const std::string& key);

}  // namespace wcache

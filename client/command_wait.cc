#include <unistd.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "client/commands.h"
#include "client/entry_ref.h"
#include "client/node_status.h"
#include "client/wait_verdict.h"
#include "core/format.h"
#include "daemon/supervisor/mount_record.h"
#include "ipc/deadline.h"

namespace wcache {
namespace {

constexpr std::chrono::milliseconds kBetweenLooks{100};

struct WaitOptions {
  std::string role;
  std::string name;
  std::string fingerprint;
  std::string timeout = "600";
};

Status check(const WaitOptions& options) {
  if (!options.role.empty()) {
    if (const Result<Role> role = role_from_string(options.role); !role)
      return fail(Reason::invalid, "unknown role '" + printable(options.role) + "'",
                  "the roles are target and draft0", "--role");
  }
  if (!options.fingerprint.empty() && !digest_from_hex(options.fingerprint))
    return fail(Reason::invalid, "'" + printable(options.fingerprint) + "' is not a fingerprint",
                "it has 32 lower-case hex digits", "--fingerprint");
  return {};
}

Result<int> run_wait(const CommandContext& context, const WaitOptions& options) {
  if (Status checked = check(options); !checked) return fail(checked.error());
  const Result<std::chrono::seconds> timeout = parse_seconds(options.timeout, "--timeout");
  if (!timeout) return fail(timeout.error());
  const Result<std::string> run_dir = context.run_dir();
  if (!run_dir) return fail(run_dir.error());

  const WaitFor what{options.role, options.name, options.fingerprint};
  const Deadline end = deadline_in(*timeout);
  for (;;) {
    const Result<NodeStatus> node = collect_status(*run_dir);
    if (!node) return fail(node.error());
    const bool mount_coming = read_mount_record(*run_dir + "/mount.json").has_value();
    WaitVerdict verdict = judge(*node, what, mount_coming);
    if (verdict.failure) return fail(std::move(*verdict.failure));
    if (verdict.done) {
      for (const std::string& path : verdict.paths) print(context.out, path + "\n");
      return 0;
    }
    if (timeout->count() == 0) return fail(std::move(verdict.missing));
    if (remaining_ms(end) == 0)
      return fail(Reason::timeout, "waited " + options.timeout + " s: " + verdict.missing.message,
                  "wcache status shows what is going on");
    std::this_thread::sleep_for(kBetweenLooks);
  }
}

}  // namespace

Command add_wait(CLI::App& app, CommandContext& context) {
  CLI::App* command =
      add_command(app, context, "wait",
                  "Waits until groups are ready, and prints the directory of each. Without a name or a "
                  "fingerprint it waits for every group that is known, and for one to appear while there "
                  "is none. A group that failed ends it with exit code 1.");
  const auto options = std::make_shared<WaitOptions>();
  command
      ->add_option("--role", options->role,
                   "Wait for groups of this role: target or draft0. Default: target where a "
                   "name or a fingerprint is given, else every role.")
      ->type_name("ROLE");
  CLI::Option* name =
      command->add_option("--name", options->name, "Wait for the group of this name.")->type_name("NAME");
  command->add_option("--fingerprint", options->fingerprint, "Wait for the group with this fingerprint.")
      ->type_name("FINGERPRINT")
      ->excludes(name);
  command
      ->add_option("--timeout", options->timeout,
                   "Give up after so many seconds, with exit code 5; 0 asks once. "
                   "Default: 600.")
      ->type_name("S");
  return {command, [&context, options] { return run_wait(context, *options); }};
}

}  // namespace wcache

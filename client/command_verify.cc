#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <vector>

#include "client/commands.h"
#include "client/entry_ref.h"
#include "client/node_status.h"
#include "core/format.h"
#include "daemon/supervisor/console.h"
#include "ipc/client.h"

namespace wcache {
namespace {

constexpr std::chrono::seconds kConnect{5};
constexpr std::chrono::seconds kSilence{60};

struct VerifyOptions {
  std::optional<std::string> entry;
  std::string role;
};

Error mismatch(const GroupStatus& group, const VerifyReply& reply) {
  std::string where = "the file " + printable(reply.file);
  if (!reply.tensor.empty()) where = "the tensor " + printable(reply.tensor) + " in " + where;
  return Error{Reason::corrupt,
               title_of(group) + ": " + where + " has the digest " + reply.found + ", not " + reply.expected,
               "stop serving it; a new preload reads it again"};
}

/// Rates and what is left, for one group at a time.
class VerifyProgressLine {
 public:
  VerifyProgressLine(Console& console, const GroupStatus& group)
      : console_(console), row_{group.role, group.name, "verifying", 0, group.nbytes, 0} {}

  void show(std::uint64_t done) {
    const auto now = Console::Clock::now();
    row_.filled = done;
    const double seconds = std::chrono::duration<double>(now - began_).count();
    if (seconds > 0) row_.rate = static_cast<double>(done) / seconds;
    console_.show({row_}, now);
  }

 private:
  Console& console_;
  GroupProgress row_;
  Console::Clock::time_point began_ = Console::Clock::now();
};

Status verify_group(const GroupStatus& group, Console& console) {
  VerifyProgressLine line(console, group);
  std::uint64_t before = 0;
  for (const RankStatus& rank : group.ranks) {
    Result<Client> client =
        Client::connect(rank.socket, Purpose::command, "wcache verify", deadline_in(kConnect));
    if (!client) return fail(client.error());
    const Result<VerifyReply> reply =
        client->verify([&](const VerifyProgress& step) { line.show(before + step.done); }, kSilence);
    if (!reply) return fail(reply.error());
    if (!reply->ok) return fail(mismatch(group, *reply));
    before += rank.nbytes;
  }
  return {};
}

/// The groups that are meant: those that are ready, or the one that was named.
Result<std::vector<GroupStatus>> chosen(const NodeStatus& node, const VerifyOptions& options) {
  std::vector<GroupStatus> groups;
  if (options.entry) {
    Result<GroupStatus> group = resolve_entry(node, *options.entry, options.role);
    if (!group) return fail(group.error());
    if (group->state != State::ready)
      return fail(Reason::not_ready, title_of(*group) + " is " + std::string(to_string(group->state)));
    groups.push_back(std::move(*group));
    return groups;
  }
  for (const GroupStatus& group : node.groups) {
    if (group.state == State::ready && (options.role.empty() || group.role == options.role))
      groups.push_back(group);
  }
  if (groups.empty())
    return fail(Reason::not_running, "no entry is ready in " + node.run_dir,
                "start something with wcache preload");
  return groups;
}

Result<int> run_verify(const CommandContext& context, const VerifyOptions& options) {
  const Result<std::string> run_dir = context.run_dir();
  if (!run_dir) return fail(run_dir.error());
  const Result<NodeStatus> node = collect_status(*run_dir);
  if (!node) return fail(node.error());
  const Result<std::vector<GroupStatus>> groups = chosen(*node, options);
  if (!groups) return fail(groups.error());
  Console console(context.out, context.err, Console::columns_of(context.err));
  std::optional<Error> first;
  for (const GroupStatus& group : *groups) {
    if (const Status verified = verify_group(group, console); !verified) {
      if (first) print(context.err, error_text(*first));
      first = verified.error();
      continue;
    }
    console.line("verified " + title_of(group) + ": " + human_size(group.nbytes) + ", every digest is right");
  }
  if (first) return fail(*first);
  return 0;
}

}  // namespace

Command add_verify(CLI::App& app, CommandContext& context) {
  CLI::App* command =
      add_command(app, context, "verify",
                  "Hashes the bytes in memory again and compares them with their digests: of one entry, "
                  "or of every one that is ready. A difference ends it with exit code 1.");
  const auto options = std::make_shared<VerifyOptions>();
  command
      ->add_option("ENTRY", options->entry,
                   "A fingerprint, a unique prefix of at least 8 digits, a name, or a path "
                   "in the mounted tree.")
      ->type_name("ENTRY");
  command->add_option("--role", options->role, "Only this role: target or draft0.")
      ->type_name("ROLE")
      ->check(CLI::IsMember({"target", "draft0"}).description(""));
  return {command, [&context, options] { return run_verify(context, *options); }};
}

}  // namespace wcache

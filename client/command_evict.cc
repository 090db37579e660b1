#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "client/commands.h"
#include "client/entry_ref.h"
#include "client/node_status.h"
#include "core/format.h"
#include "daemon/holders.h"
#include "ipc/client.h"

namespace wcache {
namespace {

constexpr std::chrono::seconds kConnect{5};
constexpr std::chrono::seconds kEvict{30};  // the mount takes the directory away first

struct EntryOptions {
  std::string entry;
  std::string role;
};

Status evict_rank(const RankStatus& rank) {
  Result<Client> client =
      Client::connect(rank.socket, Purpose::command, "wcache evict", deadline_in(kConnect));
  if (!client) return fail(client.error());
  const Result<EvictReply> reply = client->request<EvictReply>(EvictRequest{}, deadline_in(kEvict));
  if (!reply) return fail(reply.error());
  return {};
}

/// An entry whose daemon died is the mount's: it knows the open files, and the mappings are looked for here.
Status evict_orphan(const std::string& run_dir, const GroupStatus& group) {
  const MappingScan scan = scan_mappings("/proc", {{}, "/" + group.role + "/" + group.fingerprint + "/", {}});
  if (!scan.holders.empty()) {
    const Holder& holder = scan.holders.front();
    return fail(Reason::busy,
                title_of(group) + " is mapped by pid " + std::to_string(holder.pid) + " (" +
                    printable(holder.command) + ")",
                "stop the engine that uses it");
  }
  const Result<RunDir> directory = RunDir::open(run_dir);
  if (!directory) return fail(directory.error());
  Result<Client> client =
      Client::connect(directory->mount_socket(), Purpose::command, "wcache evict", deadline_in(kConnect));
  if (!client) return fail(client.error());
  const Result<EvictReply> reply =
      client->request<EvictReply>(EvictRequest{group.role, group.fingerprint}, deadline_in(kEvict));
  if (!reply) return fail(reply.error());
  return {};
}

/// All ranks or none: whoever holds one of them holds the group. A rank that is gone by the time it is asked
/// went with the first: the launcher ends the others.
Status evict_group(const GroupStatus& group) {
  if (group.ranks.size() > 1 && !group.holders.empty()) {
    const Holder& holder = group.holders.front();
    return fail(Reason::busy,
                title_of(group) + " is held by pid " + std::to_string(holder.pid) + " (" +
                    printable(holder.command) + ")",
                "stop the engine that uses it");
  }
  bool began = false;
  for (const RankStatus& rank : group.ranks) {
    if (rank.state != State::ready) continue;
    const Status evicted = evict_rank(rank);
    const bool gone = began && !evicted && evicted.error().reason == Reason::not_running;
    if (!evicted && !gone) return evicted;
    began = true;
  }
  return {};
}

Result<int> run_evict(const CommandContext& context, const EntryOptions& options) {
  const Result<std::string> run_dir = context.run_dir();
  if (!run_dir) return fail(run_dir.error());
  const Result<NodeStatus> node = collect_status(*run_dir);
  if (!node) return fail(node.error());
  const Result<GroupStatus> group = resolve_entry(*node, options.entry, options.role);
  if (!group) return fail(group.error());
  if (group->state == State::orphaned) {
    if (Status evicted = evict_orphan(*run_dir, *group); !evicted) return fail(evicted.error());
    for (const RankStatus& rank : group->ranks)
      if (rank.state == State::ready) static_cast<void>(evict_rank(rank));  // what is left of the group
    print(context.out, "evicted " + title_of(*group) + "\n");
    return 0;
  }
  // Of a failed group there may be ranks left that nobody else would end.
  const bool left =
      group->state == State::failed &&
      std::ranges::any_of(group->ranks, [](const RankStatus& rank) { return rank.state == State::ready; });
  if (group->state != State::ready && !left)
    return fail(Reason::not_ready, title_of(*group) + " is " + std::string(to_string(group->state)),
                "stop the launcher that fills it instead");
  if (Status evicted = evict_group(*group); !evicted) return fail(evicted.error());
  print(context.out, "evicted " + title_of(*group) + "\n");
  return 0;
}

}  // namespace

Command add_evict(CLI::App& app, CommandContext& context) {
  CLI::App* command =
      add_command(app, context, "evict",
                  "Drops an entry: its directory goes and its memory is freed. Refused with exit code 6 "
                  "while somebody holds it: an attached client, an open file or a mapping.");
  const auto options = std::make_shared<EntryOptions>();
  command
      ->add_option("ENTRY", options->entry,
                   "A fingerprint, a unique prefix of at least 8 digits, a name, or a path "
                   "in the mounted tree.")
      ->type_name("ENTRY")
      ->required();
  command
      ->add_option("--role", options->role,
                   "Which role is meant, target or draft0, where both have an entry of that name.")
      ->type_name("ROLE")
      ->check(CLI::IsMember({"target", "draft0"}).description(""));
  return {command, [&context, options] { return run_evict(context, *options); }};
}

}  // namespace wcache

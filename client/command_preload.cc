#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <memory>

#include "client/commands.h"
#include "client/device_choice.h"
#include "client/mount_default.h"
#include "client/nodes.h"
#include "client/plan_groups.h"
#include "core/digest_cache.h"
#include "core/format.h"
#include "daemon/supervisor/console.h"
#include "daemon/supervisor/device_probe.h"
#include "daemon/supervisor/launcher.h"
#include "daemon/supervisor/made_run_dir.h"
#include "daemon/supervisor/mount_record.h"
#include "daemon/supervisor/process.h"
#include "draftroute/key_options.h"

namespace wcache {
namespace {

constexpr std::size_t kLongestName = 255;

struct PreloadOptions {
  std::string model;
  std::string name;
  bool named = false;
  std::string mount;
  bool no_mount = false;
  bool allow_other = false;
  std::string device;
  std::string ipc;
  std::string memory_limit;
  std::string timeout;
  draftroute::KeyOptions key;
  NodeWords nodes;
};

Status check_name(const std::string& name) {
  const bool plain = printable(name) == name && name.find('/') == std::string::npos;
  if (plain && !name.empty() && name != "." && name != ".." && name.size() <= kLongestName) return {};
  return fail(Reason::invalid, "'" + printable(name) + "' cannot be the name of a model",
              "it becomes a file's name: 1 to 255 bytes of UTF-8 without slash and control characters",
              "--name");
}

Result<std::optional<MountPlan>> plan_mount(const PreloadOptions& options, const std::string& run_dir) {
  if (options.no_mount) return std::nullopt;
  const bool chosen = !options.mount.empty();
  const Result<std::string> path =
      resolve_mount_path(chosen ? options.mount : default_mount_path(geteuid(), run_dir));
  if (!path) {
    Error error = path.error();
    error.reason = Reason::invalid;
    error.key = "--mount";
    return fail(std::move(error));
  }
  // The default path does not matter where the run directory has a mount already.
  const bool mounted = access((run_dir + "/wcachefs.sock").c_str(), F_OK) == 0;
  if (Status checked = check_mount_path(*path); !checked && (chosen || !mounted))
    return fail(checked.error());
  return MountPlan{*path, chosen, options.allow_other};
}

DigestCache open_digest_cache() {
  const Result<std::filesystem::path> directory = digest_cache_dir(std::getenv, geteuid());
  return directory ? DigestCache::open(*directory) : DigestCache();
}

/// Which devices this node's ranks get. A signal ends the wait for a driver that hangs.
Result<DeviceChoice> choose_devices_of(const DeviceWish& devices, const LoadWish& wish,
                                       const StopSignals& signals) {
  DeviceProbe probe = machine_probe();
  probe.stop = [&signals] { return signals.pending(); };
  return choose_devices(devices, ranks_on_node(wish.route.tp_size, wish.nodes),
                        [&](const DeviceView& view) { return probe.run(view); });
}

/// The words of the command line as a wish; they are checked here.
Result<LoadWish> wish_of(const CommandContext& context, const PreloadOptions& options) {
  LoadWish wish;
  Result<draftroute::RouteRequest> route = options.key.request(options.model);
  if (!route) return fail(std::move(route.error()));
  wish.route = std::move(*route);
  Result<NodesPlan> nodes = plan_nodes(options.nodes, wish.route.tp_size, context.environment);
  if (!nodes) return fail(std::move(nodes.error()));
  wish.nodes = std::move(*nodes);
  if (options.named) wish.name = options.name;
  if (options.memory_limit.empty()) return wish;
  const Result<std::uint64_t> limit = parse_size(options.memory_limit, "--memory-limit");
  if (!limit) return fail(limit.error());
  wish.memory_limit = *limit;
  return wish;
}

Status find_programs(LaunchPlan& plan) {
  const Result<std::string> own = program_directory();
  if (!own) return fail(own.error());
  const char* path = std::getenv("PATH");
  const std::string directories = path == nullptr ? "" : path;
  Result<std::string> wcached = find_program("wcached", *own, directories);
  if (!wcached) return fail(wcached.error());
  plan.wcached = std::move(*wcached);
  if (!plan.mount) return {};
  Result<std::string> wcachefs = find_program("wcachefs", *own, directories);
  if (!wcachefs) return fail(wcachefs.error());
  plan.wcachefs = std::move(*wcachefs);
  return {};
}

struct Planned {
  LaunchPlan launch;
  std::vector<std::string> notes;
};

/// Everything that can be refused before anything is made or started. The run directory comes last.
Result<Planned> plan_launch(const CommandContext& context, const PreloadOptions& options,
                            const StopSignals& signals) {
  const Result<std::string> run_dir = context.run_dir();
  if (!run_dir) return fail(run_dir.error());
  if (options.named) {
    if (Status named = check_name(options.name); !named) return fail(named.error());
  }
  const Result<DeviceWish> devices = parse_device_wish(options.device, options.ipc);
  if (!devices) return fail(devices.error());
  std::optional<std::chrono::seconds> timeout;
  if (!options.timeout.empty()) {
    const Result<std::chrono::seconds> seconds = parse_seconds(options.timeout, "--timeout");
    if (!seconds) return fail(seconds.error());
    timeout = *seconds;
  }
  Result<LoadWish> wish = wish_of(context, options);
  if (!wish) return fail(wish.error());
  Result<std::optional<MountPlan>> mount = plan_mount(options, *run_dir);
  if (!mount) return fail(mount.error());
  Result<DeviceChoice> choice = choose_devices_of(*devices, *wish, signals);
  if (signals.pending()) return fail(Reason::timeout, "stopped");
  if (!choice) return fail(choice.error());
  wish->devices = std::move(*choice);
  DigestCache cache = open_digest_cache();
  Result<PlannedGroups> planned = plan_groups(*wish, cache);
  if (!planned) return fail(planned.error());
  Result<RunDir> directory = make_run_dir(*run_dir);
  if (!directory) return fail(directory.error());
  LaunchPlan plan{.run_dir = std::move(*directory),
                  .groups = std::move(planned->groups),
                  .mount = std::move(*mount),
                  .timeout = timeout,
                  .device_asked = wish->devices.asked,
                  .ipc_asked = wish->devices.ipc,
                  .log_level = context.common.log_level,
                  .wcached = {},
                  .wcachefs = {},
                  .nodes = std::move(wish->nodes)};
  return Planned{std::move(plan),
                 {wish->devices.note, std::move(planned->device_note), std::move(planned->draft_note)}};
}

Status check_socket_lengths(const LaunchPlan& plan) {
  for (const GroupPlan& group : plan.groups) {
    for (const RankPlan& rank : group.ranks) {
      if (Status fits = plan.run_dir.check_socket_length(rank.device_uuid); !fits) return fits;
    }
  }
  return {};
}

Result<int> run_preload(const CommandContext& context, const PreloadOptions& options,
                        const StopSignals& signals) {
  Result<Planned> planned = plan_launch(context, options, signals);
  if (!planned) {
    const int number = signals.take();
    return number != 0 ? Result<int>(128 + number) : fail(planned.error());
  }
  LaunchPlan& plan = planned->launch;
  Status ready = check_socket_lengths(plan);
  if (ready) ready = find_programs(plan);
  if (!ready) {
    if (run_dir_was_made(plan.run_dir)) remove_made_run_dir(plan.run_dir);
    return fail(ready.error());
  }
  const unsigned columns = Console::columns_of(context.err);
  if (plan.log_level.empty() && columns > 0)
    plan.log_level = "warning";  // the lines of progress tell the rest
  Console console(context.out, context.err, columns);
  for (const std::string& note : planned->notes) {
    if (!note.empty()) console.note(printable(note));
  }
  return Launcher(std::move(plan), console, signals).run();
}

void add_node_options(CLI::App& command, NodeWords& words) {
  const auto add = [&](const char* name, std::string& word, const char* text, const char* type) {
    command.add_option(name, word, text)->type_name(type);
  };
  add("--nnodes", words.nnodes, "Nodes that share the ranks. Default: 1.", "N");
  add("--node-rank", words.node_rank, "Which of them this is, from 0. Default: 0.", "N");
  add("--master-addr", words.master_addr,
      "Address of node 0, where the nodes of a group meet; needed with more than one node.", "ADDRESS");
  add("--master-port", words.master_port,
      "Port where the nodes of the target's group meet; on one node no port is opened. Default: 29501.",
      "PORT");
  add("--draft-master-port,--weight-cache-draft-master-port", words.draft_master_port,
      "Port where the nodes of the draft's group meet; never the target's. Default: the one behind "
      "--master-port.",
      "PORT");
  add("--rendezvous-token-file", words.token_file,
      "A file with the line that the nodes of a group know each other by; needed with more than one node. "
      "Default: the value of WCACHE_RENDEZVOUS_TOKEN.",
      "FILE");
}

}  // namespace

Command add_preload(CLI::App& app, CommandContext& context, const StopSignals& signals) {
  CLI::App* command = add_command(app, context, "preload",
                                  "Loads MODEL into memory and serves it: starts its daemons, mounts the "
                                  "tree, and prints one line 'READY ROLE "
                                  "FINGERPRINT PATH' when its directory can be used. Stays in the "
                                  "foreground; Ctrl-C or SIGTERM stops what it started.");
  const auto options = std::make_shared<PreloadOptions>();
  command
      ->add_option("MODEL", options->model,
                   "A local directory in Hugging Face layout, a hub cache snapshot, or a "
                   "single weight file.")
      ->type_name("MODEL")
      ->required();
  CLI::Option* name = command
                          ->add_option("--name", options->name,
                                       "Name of the entry in by-name. Default: the base name of MODEL.")
                          ->type_name("NAME");
  CLI::Option* mount =
      command
          ->add_option("--mount", options->mount,
                       "Where the tree is mounted; created when missing, and removed again at the end. "
                       "Default: the mount "
                       "that the run directory has, else /mnt/wcache for root, else <run dir>/mnt.")
          ->type_name("DIR");
  CLI::Option* no_mount =
      command
          ->add_flag("--no-mount", options->no_mount, "Do not mount; the path in the READY line is then '-'.")
          ->excludes(mount);
  command->add_flag("--allow-other", options->allow_other, "Let other users read the mounted tree.")
      ->excludes(no_mount);
  command
      ->add_option(
          "--device", options->device,
          "Where the weights are held: host, cuda (on the devices that CUDA_VISIBLE_DEVICES leaves, one "
          "a rank) or cuda:UUID[,UUID...] (on these). Default: cuda where a driver and a device answer, "
          "else host.")
      ->type_name("DEVICE");
  command
      ->add_option("--ipc", options->ipc,
                   "How weights on a CUDA device are shared: vmm (descriptors) or legacy (CUDA IPC handles). "
                   "Default: vmm where the device can.")
      ->type_name("KIND");
  command
      ->add_option("--memory-limit", options->memory_limit,
                   "Refuse to load more than this much, target and draft together; takes K, M, G and T. "
                   "Default: what the machine and the control groups leave.")
      ->type_name("SIZE");
  command
      ->add_option("--timeout", options->timeout,
                   "Give up on a group that is not ready after so many seconds. Default: "
                   "no limit.")
      ->type_name("S");
  options->key.add_to(*command);
  add_node_options(*command, options->nodes);
  return {command, [&context, &signals, options, name] {
            options->named = name->count() > 0;
            return run_preload(context, *options, signals);
          }};
}

}  // namespace wcache

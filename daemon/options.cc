#include "daemon/options.h"

#include <CLI/CLI.hpp>
#include <memory>
#include <utility>

#include "core/format.h"
#include "core/help.h"
#include "core/log.h"
#include "core/version.h"
#include "draftroute/key_options.h"

namespace wcache {
namespace {

struct Words {
  std::string model;
  draftroute::KeyOptions key;
  std::string role = "target";
  std::string device = "host";
  std::string log_level = "info";
  std::string memory_limit;
};

Result<DaemonOptions> check(DaemonOptions options, const Words& words) {
  const Result<Role> role = role_from_string(words.role);
  if (!role) return fail(Reason::invalid, "no such role: " + words.role, "target or draft0", "--role");
  const Result<draftroute::RouteRequest> request = words.key.request(words.model);
  if (!request) return fail(request.error());
  options.group = {*request, *role};
  if (words.device != "host")
    return fail(Reason::invalid, "no such device: " + words.device, "this build serves from host memory",
                "--device");
  const Result<spdlog::level::level_enum> level = parse_log_level(words.log_level);
  if (!level) return fail(Reason::invalid, level.error().message, level.error().hint, "--log-level");
  options.log_level = *level;
  if (!words.memory_limit.empty()) {
    const Result<std::uint64_t> limit = parse_size(words.memory_limit, "--memory-limit");
    if (!limit) return fail(limit.error());
    options.memory_limit = *limit;
  }
  if (words.model.empty()) return fail(Reason::invalid, "no model is named", "give --model", "--model");
  if (options.node_ranks == 0)
    return fail(Reason::invalid, "a group has one rank at least", {}, "--node-ranks");
  if (options.grouped && options.launcher_fd < 0)
    return fail(Reason::invalid, "--grouped needs a launcher", "give --launcher-fd", "--grouped");
  return options;
}

}  // namespace

Result<std::variant<DaemonOptions, HelpText, ListDevices>> parse_daemon_options(int argc,
                                                                                const char* const* argv) {
  CLI::App app(
      "Holds one rank of one model in memory and serves it on a socket of the run directory. Started by "
      "'wcache preload'.",
      "wcached");
  DaemonOptions options;
  Words words;
  bool devices = false;
  app.formatter(std::make_shared<HelpFormatter>());
  app.set_help_flag("--help", "Print this help.");
  app.set_version_flag("--version", std::string(version()), "Print the version.");
  app.add_option("--model", words.model,
                 "The checkpoint: a directory in Hugging Face layout or a weight file.")
      ->type_name("MODEL");
  app.add_option("--role", words.role, "What the model is served as: target or draft0. Default: target.")
      ->type_name("ROLE");
  app.add_option("--rank", options.rank, "The rank it serves; its device is HOST-<rank>. Default: 0.")
      ->type_name("N");
  words.key.add_to(app);
  app.add_option("--node-ranks", options.node_ranks,
                 "Ranks of the group on this node, which make up one directory. Default: 1.")
      ->type_name("N");
  app.add_flag("--grouped", options.grouped,
               "The launcher settles the fingerprint with the group's other ranks and says when to publish.");
  app.add_option("--name", options.name, "Name of the entry in by-name. Default: the base name of MODEL.")
      ->type_name("NAME");
  app.add_option("--run-dir", options.run_dir,
                 "Where sockets are. Default: WCACHE_RUN_DIR, else /run/wcache for root, else "
                 "$XDG_RUNTIME_DIR/wcache.")
      ->type_name("DIR");
  app.add_option("--device", words.device, "Where the weights are held: host. Default: host.")
      ->type_name("DEVICE");
  app.add_option("--memory-limit", words.memory_limit,
                 "The most memory the entry may take, in bytes or with K, M, G or T. Default: no limit.")
      ->type_name("SIZE");
  app.add_option("--launcher-fd", options.launcher_fd,
                 "The inherited SOCK_SEQPACKET socket that leads to the launcher. Default: none.")
      ->type_name("N");
  app.add_option("--log-level", words.log_level,
                 "How much is logged: trace, debug, info, warning, error or off. Default: info.")
      ->type_name("LEVEL");
  app.add_flag(
      "--devices", devices,
      "Do nothing but print, as JSON, the CUDA devices that the driver shows to this process, or why "
      "there are none.");
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    return HelpText{app.help()};
  } catch (const CLI::CallForVersion&) {
    return HelpText{"wcached " + std::string(version()) + "\n"};
  } catch (const CLI::ParseError& error) {
    return fail(Reason::invalid, error.what(), "see wcached --help");
  }
  if (devices) return ListDevices{};
  Result<DaemonOptions> checked = check(std::move(options), words);
  if (!checked) return fail(std::move(checked.error()));
  return std::move(*checked);
}

}  // namespace wcache

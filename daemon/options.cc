#include "daemon/options.h"

#include <CLI/CLI.hpp>
#include <memory>
#include <string_view>
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
  std::string ipc;
  std::string slab_size;
  std::string memory_limit;
};

/// As nvidia-smi prints it, whole: it is part of the socket's name.
bool is_device_uuid(std::string_view word) {
  constexpr std::string_view kForm = "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx";
  if (!word.starts_with("GPU-") && !word.starts_with("MIG-")) return false;
  word.remove_prefix(4);
  if (word.size() != kForm.size()) return false;
  for (std::size_t i = 0; i < word.size(); ++i) {
    const bool digit = (word[i] >= '0' && word[i] <= '9') || (word[i] >= 'a' && word[i] <= 'f');
    if (kForm[i] == 'x' ? !digit : word[i] != '-') return false;
  }
  return true;
}

Status check_device(DaemonOptions& options, const Words& words) {
  constexpr std::string_view kCuda = "cuda:";
  if (words.device != "host") {
    const std::string_view device = words.device;
    if (!device.starts_with(kCuda) || !is_device_uuid(device.substr(kCuda.size())))
      return fail(Reason::invalid, "no such device: " + words.device,
                  "host, or cuda: and a whole UUID as 'wcached --devices' lists them", "--device");
    options.device_uuid = device.substr(kCuda.size());
  }
  if (words.ipc == "vmm")
    options.ipc = DeviceIpc::vmm;
  else if (words.ipc == "legacy")
    options.ipc = DeviceIpc::legacy;
  else if (!words.ipc.empty())
    return fail(Reason::invalid, "no such way to share device memory: " + words.ipc, "vmm or legacy",
                "--ipc");
  if (options.ipc && options.device_uuid.empty())
    return fail(Reason::invalid, "--ipc is for CUDA devices: files in host memory need none",
                "leave --ipc out", "--ipc");
  if (words.slab_size.empty()) return {};
  const Result<std::uint64_t> size = parse_size(words.slab_size, "--slab-size");
  if (!size) return fail(size.error());
  options.slab_nbytes = *size;
  return {};
}

Result<DaemonOptions> check(DaemonOptions options, const Words& words) {
  const Result<Role> role = role_from_string(words.role);
  if (!role) return fail(Reason::invalid, "no such role: " + words.role, "target or draft0", "--role");
  const Result<draftroute::RouteRequest> request = words.key.request(words.model);
  if (!request) return fail(request.error());
  options.group = {*request, *role};
  if (Status device = check_device(options, words); !device) return fail(device.error());
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
  app.add_option("--rank", options.rank,
                 "The rank it serves; in host memory its device is HOST-<rank>. Default: 0.")
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
  app.add_option("--device", words.device,
                 "Where the weights are held: host, or cuda: and the whole UUID of a device. Default: host.")
      ->type_name("DEVICE");
  app.add_option(
         "--ipc", words.ipc,
         "How device memory is given to engines: vmm (descriptors) or legacy (CUDA IPC handles). Default: "
         "vmm where the device can.")
      ->type_name("WAY");
  app.add_option(
         "--slab-size", words.slab_size,
         "Size of an allocation on the device that holds several tensors; there are at most 8, larger ones "
         "if need be. Default: 8G.")
      ->type_name("SIZE");
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

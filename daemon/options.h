#pragma once

#include <spdlog/common.h>

#include <cstdint>
#include <optional>
#include <string>
#include <variant>

#include "core/entry_plan.h"
#include "core/result.h"
#include "core/slab_plan.h"
#include "daemon/device_entry.h"
#include "draftroute/group_request.h"

namespace wcache {

/// What `wcached` was told on its command line.
struct DaemonOptions {
  draftroute::GroupRequest group;  ///< model, role and the key options
  std::uint32_t rank = 0;
  std::uint32_t node_ranks = 1;  ///< ranks of the group on this node
  bool grouped = false;          ///< the launcher settles the fingerprint and says when to publish
  std::string name;              ///< empty: the checkpoint's own
  std::string run_dir;           ///< empty: the default
  std::string device_uuid;       ///< "GPU-...", "MIG-...": where the weights go; empty: host memory
  std::optional<DeviceIpc> ipc;  ///< how device memory is shared; nullopt: as the device can
  std::uint64_t slab_nbytes = kSlabNbytes;
  std::uint64_t memory_limit = 0;  ///< bytes; 0: none
  int launcher_fd = -1;            ///< -1: nobody launched it
  spdlog::level::level_enum log_level = spdlog::level::info;

  /// What the daemon's socket is named by: the device's UUID, "HOST-<rank>" for host memory.
  std::string device() const { return device_uuid.empty() ? "HOST-" + std::to_string(rank) : device_uuid; }
};

/// A text that was asked for (--help, --version): to be printed, exit code 0.
struct HelpText {
  std::string text;
};

/// --devices: no daemon, but a report of the CUDA devices.
struct ListDevices {};

/// invalid, with the option as key, for what the command line may not say.
Result<std::variant<DaemonOptions, HelpText, ListDevices>> parse_daemon_options(int argc,
                                                                                const char* const* argv);

}  // namespace wcache

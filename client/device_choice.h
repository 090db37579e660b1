#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/result.h"
#include "daemon/device_entry.h"
#include "daemon/device_report.h"
#include "daemon/supervisor/device_probe.h"

namespace wcache {

/// --device and --ipc as they were given.
struct DeviceWish {
  enum class Kind {
    automatic,  ///< not given: CUDA where it can be had
    host,
    cuda,
  };
  Kind kind = Kind::automatic;
  /// Of kind cuda: UUIDs or, of whole GPUs, beginnings of them, as reports spell them; empty: whatever is
  /// visible.
  std::vector<std::string> names;
  std::optional<DeviceIpc> ipc;
};

/// Empty words: not given. Reason::invalid, with the option as key, for words that are none.
Result<DeviceWish> parse_device_wish(const std::string& device, const std::string& ipc);

struct ChosenDevice {
  std::string uuid;
  DeviceIpc ipc = DeviceIpc::vmm;
  bool operator==(const ChosenDevice&) const = default;
};

/// Where a launch puts its weights.
struct DeviceChoice {
  std::vector<ChosenDevice> devices;  ///< of this node's ranks, in their order; empty: host memory
  bool asked = false;                 ///< --device said so; otherwise it is the default
  std::optional<DeviceIpc> ipc = {};  ///< as --ipc said
  std::string note;                   ///< why the default is host memory, where a user would wonder
  bool on_device() const { return !devices.empty(); }
};

/// How the machine's devices are asked for: DeviceProbe::run.
using AskDevices = std::function<DeviceReport(const DeviceView&)>;

/// The devices of so many ranks of this node. Errors: `unsupported` where what was asked for cannot be had,
/// with the driver's or the device's own reason; `invalid` for a name that no device or more than one has,
/// for one device twice, for another number of devices than of ranks, for --ipc with host memory. The default
/// fails for --ipc alone. Asks nothing for host memory.
Result<DeviceChoice> choose_devices(const DeviceWish& wish, std::size_t ranks, const AskDevices& ask);

}  // namespace wcache

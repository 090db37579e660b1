#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.h"

namespace wcache {

/// nvidia-smi's compute modes: who may use a device.
enum class ComputeMode {
  open,        ///< "default": any process
  exclusive,   ///< "exclusive-process": one process at a time
  prohibited,  ///< "prohibited": none
};
std::string_view to_string(ComputeMode mode);

/// A CUDA device, for those who do not load the driver.
struct ReportedDevice {
  std::string uuid;  ///< "GPU-8-4-4-4-12", or "MIG-…"
  std::string name;
  bool mig = false;
  std::uint64_t nbytes = 0;  ///< of its memory, all told
  bool vmm = false;          ///< whether its memory can be given away as descriptors
  ComputeMode compute_mode = ComputeMode::open;
  bool operator==(const ReportedDevice&) const = default;
};

/// Why no device can be used.
enum class DeviceTrouble : std::uint8_t {
  no_driver,  ///< no library
  stub,       ///< the toolkit's stub in its place
  too_old,    ///< a driver that lacks functions
  no_device,  ///< a driver that sees none
  no_start,   ///< a driver that does not start, or fails when asked
  no_answer,  ///< who asked the driver hangs or died
};
std::string_view to_string(DeviceTrouble trouble);  ///< "no-driver", …

/// What the CUDA driver of this machine says of its devices: either devices, or a trouble with its error.
struct DeviceReport {
  std::string driver;                   ///< its CUDA version, "13.0"
  std::vector<ReportedDevice> devices;  ///< in the driver's order
  std::optional<DeviceTrouble> trouble;
  Error error = {};  ///< of `trouble`
};

DeviceReport trouble_report(DeviceTrouble trouble, Error error);

/// What `wcached --devices` prints: one object and a newline.
std::string to_json(const DeviceReport& report);

/// The inverse. internal for what is none.
Result<DeviceReport> device_report_of(std::string_view json);

}  // namespace wcache

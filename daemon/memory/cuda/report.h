#pragma once

#include <string>

#include "daemon/device_report.h"

namespace wcache {

/// Loads and starts the driver in `file` and asks it what CUDA_VISIBLE_DEVICES leaves. Makes no context. A
/// driver that hangs hangs its caller.
DeviceReport report_cuda_devices(const std::string& file);

}  // namespace wcache

#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "daemon/device_report.h"

namespace wcache {

/// Which devices a probe is to see.
struct DeviceView {
  bool as_set = true;  ///< what CUDA_VISIBLE_DEVICES leaves; otherwise that variable is set aside, and
  std::string only;    ///< this is its value; empty: the variable is unset
};

/// Asks the CUDA driver for its devices through a process of its own (`wcached --devices`), so that a driver
/// that hangs or crashes takes nobody along.
struct DeviceProbe {
  std::string wcached;  ///< path of the program; empty: there is none
  std::chrono::milliseconds deadline = std::chrono::seconds(60);
  std::function<bool()> stop = {};  ///< asked again and again: true ends the wait

  /// Blocks until the deadline at most. What does not answer is killed: DeviceTrouble::no_answer.
  DeviceReport run(const DeviceView& view = {}) const;
};

/// The probe with the wcached that belongs to this program: beside it, else on the PATH.
DeviceProbe machine_probe();
/// The same for a shared library that this is linked into: in bin beside the library's directory, else on the
/// PATH.
DeviceProbe library_probe();

}  // namespace wcache

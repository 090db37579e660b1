#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "client/fuse_probe.h"
#include "core/result.h"
#include "daemon/budget.h"
#include "daemon/device_report.h"

namespace wcache {

/// One thing that `wcache doctor` looks at.
struct MachineCheck {
  enum class Grade {
    ok,       ///< there, and good
    lacking,  ///< it works without, slower or with less
    fatal,    ///< serving is impossible without
  };
  std::string name;  ///< one word, stable, for programs
  Grade grade = Grade::ok;
  std::string found;   ///< what was found
  std::string advice;  ///< what to do about it; empty when nothing needs doing
};

std::string_view to_string(MachineCheck::Grade grade);  ///< "ok", "lacking", "fatal"

// Each looks at the machine, or judges what a trial gave; none changes anything that outlives it.
MachineCheck check_kernel();
MachineCheck check_mount(const FuseProbe& probe);
MachineCheck check_passthrough(const FuseProbe& probe);
MachineCheck check_memory_kind();  ///< by filling a small entry's memory
MachineCheck check_io_uring();     ///< by making a ring
/// The driver, then each of its devices: all of the name "gpu". Never fatal: host memory serves as well.
std::vector<MachineCheck> check_gpus(const DeviceReport& report);
MachineCheck check_free_memory(const std::vector<MemoryLimit>& limits);
MachineCheck check_resource_limits();
/// `uuid`: of the device whose sockets' names are to fit.
MachineCheck check_run_dir(const Result<std::string>& run_dir, const std::string& uuid);

}  // namespace wcache

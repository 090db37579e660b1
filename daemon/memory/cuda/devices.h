#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.h"
#include "daemon/memory/cuda/load.h"

namespace wcache {

/// A device as the driver shows it to this process. Looking at it makes no context on it.
struct CudaDevice {
  std::string uuid;  ///< "GPU-8-4-4-4-12" as nvidia-smi prints it; of a MIG instance "MIG-...", its own
  std::string name;  ///< "NVIDIA H100 80GB HBM3"
  bool mig = false;
  std::uint64_t total_nbytes = 0;
  bool vmm_handles = false;  ///< its memory can be given away as descriptors (attributes 102 and 103)
  int compute_mode = 0;      ///< CU_COMPUTEMODE_*: 0 default, 2 prohibited, 3 exclusive-process
  int ordinal = 0;           ///< in this process; depends on CUDA_VISIBLE_DEVICES
};

/// As cuDriverGetVersion counts, 1000 * major + 10 * minor, and as people do: "13.0".
Result<int> cuda_driver_version(const CudaDriver& driver);
std::string cuda_version_text(int version);

/// What CUDA_VISIBLE_DEVICES leaves, in the driver's order. Errors as of cuda_error.
Result<std::vector<CudaDevice>> cuda_devices(const CudaDriver& driver);

/// The device with that UUID, or the only one whose UUID begins so. not_found lists those that are there;
/// invalid for the beginning of several.
Result<CudaDevice> find_cuda_device(const CudaDriver& driver, std::string_view uuid);

}  // namespace wcache

#pragma once

#include <memory>
#include <string>

#include "core/result.h"
#include "daemon/device_report.h"

namespace wcache {

/// daemon/memory/cuda/driver.h, for those who may see <cuda.h>.
struct CudaDriver;

/// The file that `load_cuda_driver` takes when it is not told: WCACHE_LIBCUDA, else libcuda.so.1.
std::string cuda_driver_file();

/// Loads the library and starts the driver (cuInit). Every error is `unsupported` and says which case it is:
/// no driver, the toolkit's stub, a driver older than kOldestCudaDriver, no device, or what cuInit said; for
/// programs it goes to `trouble` as well.
Result<std::shared_ptr<const CudaDriver>> load_cuda_driver(const std::string& file,
                                                           DeviceTrouble* trouble = nullptr);

/// The error of a driver that sees no device.
Error no_cuda_device();

}  // namespace wcache

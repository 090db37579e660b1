#include "daemon/memory/cuda/report.h"

#include <cuda.h>

#include <utility>

#include "daemon/memory/cuda/devices.h"

namespace wcache {
namespace {

ComputeMode mode_of(int mode) {
  if (mode == CU_COMPUTEMODE_DEFAULT) return ComputeMode::open;
  return mode == CU_COMPUTEMODE_PROHIBITED ? ComputeMode::prohibited : ComputeMode::exclusive;
}

}  // namespace

DeviceReport report_cuda_devices(const std::string& file) {
  DeviceTrouble trouble = DeviceTrouble::no_start;
  auto driver = load_cuda_driver(file, &trouble);
  if (!driver) return trouble_report(trouble, std::move(driver.error()));
  const Result<int> version = cuda_driver_version(**driver);
  if (!version) return trouble_report(DeviceTrouble::no_start, version.error());
  Result<std::vector<CudaDevice>> devices = cuda_devices(**driver);
  if (!devices) return trouble_report(DeviceTrouble::no_start, std::move(devices.error()));
  if (devices->empty()) return trouble_report(DeviceTrouble::no_device, no_cuda_device());
  DeviceReport report;
  report.driver = cuda_version_text(*version);
  for (CudaDevice& device : *devices)
    report.devices.push_back({std::move(device.uuid), std::move(device.name), device.mig, device.total_nbytes,
                              device.vmm_handles, mode_of(device.compute_mode)});
  return report;
}

}  // namespace wcache

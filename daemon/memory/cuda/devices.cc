#include "daemon/memory/cuda/devices.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>

#include "daemon/memory/cuda/driver.h"

namespace wcache {
namespace {

/// 8-4-4-4-12 hex digits.
std::string to_text(const CUuuid& uuid) {
  std::string text;
  for (std::size_t i = 0; i < sizeof uuid.bytes; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    std::array<char, 3> digits{};
    std::snprintf(digits.data(), digits.size(), "%02x", static_cast<unsigned char>(uuid.bytes[i]));
    text += digits.data();
  }
  return text;
}

Result<int> attribute(const CudaDriver& driver, CUdevice_attribute which, CUdevice device) {
  int value = 0;
  if (auto s = cuda_check(driver, "asking a device's attribute",
                          driver.cuDeviceGetAttribute(&value, which, device));
      !s)
    return fail(s.error());
  return value;
}

Status add_attributes(const CudaDriver& driver, CUdevice device, CudaDevice& out) {
  const auto vmm = attribute(driver, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device);
  if (!vmm) return fail(vmm.error());
  const auto descriptors =
      attribute(driver, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, device);
  if (!descriptors) return fail(descriptors.error());
  const auto mode = attribute(driver, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, device);
  if (!mode) return fail(mode.error());
  out.vmm_handles = *vmm == 1 && *descriptors == 1;
  out.compute_mode = *mode;
  return {};
}

Result<CudaDevice> device_at(const CudaDriver& driver, int ordinal) {
  const auto check = [&](CUresult result) { return cuda_check(driver, "asking for a device", result); };
  CudaDevice out;
  out.ordinal = ordinal;
  CUdevice device = 0;
  CUuuid uuid{};
  CUuuid parent{};
  std::array<char, 256> name{};
  std::size_t nbytes = 0;
  if (auto s = check(driver.cuDeviceGet(&device, ordinal)); !s) return fail(s.error());
  if (auto s = check(driver.cuDeviceGetUuid(&uuid, device)); !s) return fail(s.error());
  if (auto s = check(driver.parent_uuid(&parent, device)); !s) return fail(s.error());
  if (auto s = check(driver.cuDeviceGetName(name.data(), static_cast<int>(name.size()) - 1, device)); !s)
    return fail(s.error());
  if (auto s = check(driver.cuDeviceTotalMem(&nbytes, device)); !s) return fail(s.error());
  if (auto s = add_attributes(driver, device, out); !s) return fail(s.error());
  out.mig = std::memcmp(uuid.bytes, parent.bytes, sizeof uuid.bytes) != 0;
  out.uuid = (out.mig ? "MIG-" : "GPU-") + to_text(uuid);
  out.name = name.data();
  out.total_nbytes = nbytes;
  return out;
}

std::string list_of(const std::vector<CudaDevice>& devices) {
  std::string text;
  for (const CudaDevice& device : devices)
    text += (text.empty() ? "" : ", ") + device.uuid + " (" + device.name + ")";
  return text.empty() ? "none" : text;
}

}  // namespace

Result<int> cuda_driver_version(const CudaDriver& driver) {
  int version = 0;
  if (auto s = cuda_check(driver, "asking the driver's version", driver.cuDriverGetVersion(&version)); !s)
    return fail(s.error());
  return version;
}

std::string cuda_version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

Result<std::vector<CudaDevice>> cuda_devices(const CudaDriver& driver) {
  int count = 0;
  if (auto s = cuda_check(driver, "counting the devices", driver.cuDeviceGetCount(&count)); !s)
    return fail(s.error());
  std::vector<CudaDevice> devices;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    Result<CudaDevice> device = device_at(driver, ordinal);
    if (!device) return fail(std::move(device.error()));
    devices.push_back(std::move(*device));
  }
  return devices;
}

Result<CudaDevice> find_cuda_device(const CudaDriver& driver, std::string_view uuid) {
  Result<std::vector<CudaDevice>> devices = cuda_devices(driver);
  if (!devices) return fail(std::move(devices.error()));
  std::vector<CudaDevice> found;
  for (const CudaDevice& device : *devices) {
    if (device.uuid == uuid) return device;
    if (device.uuid.starts_with(uuid)) found.push_back(device);
  }
  if (found.size() == 1) return std::move(found.front());
  if (found.empty())
    return fail(Reason::not_found, "no CUDA device " + std::string(uuid) + " is here",
                "there are: " + list_of(*devices), "--device");
  return fail(Reason::invalid,
              "several CUDA devices are named " + std::string(uuid) + "...: " + list_of(found),
              "give more of the UUID", "--device");
}

}  // namespace wcache

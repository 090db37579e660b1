#pragma once

#include <cuda.h>

#include <optional>
#include <string_view>
#include <vector>

#include "tests/fake_cuda/config.h"

namespace wcache::fake_cuda {

/// The devices this process sees. An ordinal (CUdevice) counts the visible ones; a place counts those of the
/// configuration and is the same in every process.
class Devices {
 public:
  Devices() = default;
  /// `visible` is CUDA_VISIBLE_DEVICES, null when unset: indices, `GPU-` and `MIG-` names and unique prefixes
  /// of these; what is from the first entry on that names no device, or one again, does not count. As with
  /// the real driver, a process sees at most one MIG instance.
  Devices(const Config& config, const char* visible);

  int count() const { return static_cast<int>(places_.size()); }
  bool has(CUdevice device) const { return device >= 0 && device < count(); }
  int place(CUdevice device) const { return places_[static_cast<std::size_t>(device)]; }
  std::optional<CUdevice> ordinal(int place) const;

  /// Of a device that is there.
  const DeviceConfig& at(CUdevice device) const;
  int attribute(CUdevice device, int attribute) const;

 private:
  std::optional<int> named(std::string_view entry) const;
  void add(int place);

  std::vector<DeviceConfig> all_;
  std::vector<int> places_;
};

}  // namespace wcache::fake_cuda

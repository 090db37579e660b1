#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/device_handle.h"
#include "core/fd.h"
#include "core/result.h"

namespace wcache {

/// How device memory is given to other processes.
enum class DeviceIpc {
  vmm,     ///< a descriptor a slab: the memory lives as long as any of them, or a mapping, does
  legacy,  ///< a CUipcMemHandle a slab: the memory lives as long as the daemon's context
};

/// As --ipc spells it.
constexpr std::string_view to_string(DeviceIpc ipc) {
  return ipc == DeviceIpc::vmm ? "vmm" : "legacy";
}

/// The weights of one rank on its device: filled, in the slabs of a SlabPlan, never written again. Safe for
/// concurrent use.
class DeviceEntry {
 public:
  virtual ~DeviceEntry() = default;

  virtual DeviceIpc ipc() const = 0;

  /// Of all slabs: what they take of the device's memory.
  virtual std::uint64_t nbytes() const = 0;

  /// vmm: a descriptor of each slab, the daemon's own; legacy: empty.
  virtual std::span<const Fd> slabs() const = 0;
  /// legacy: a handle of each slab; vmm: empty.
  virtual std::span<const DeviceHandle> handles() const = 0;

  /// 32 hex digits that no other filling of device memory has: one mapping of a slab serves a whole process,
  /// and this tells it from another daemon's slab.
  virtual const std::string& instance() const = 0;

  /// Copies bytes of the image `image` of the plan from the device. Blocks; other readers wait their turn. A
  /// range beyond the image is `invalid`; `timeout`: the device hangs, and then at once for as long as it
  /// does; what the driver says otherwise is an error as of cuda_error.
  virtual Status read(std::size_t image, std::uint64_t offset, std::span<std::byte> out) = 0;

  /// From now on reads fail, those under way too, soon. From any thread; waits for nothing.
  virtual void stop_reads() = 0;

  /// Whether the process has a context on the device now, which takes a few hundred MB of it.
  virtual bool has_context() const = 0;
};

}  // namespace wcache

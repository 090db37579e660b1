#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/fd.h"
#include "core/result.h"
#include "daemon/device_entry.h"
#include "daemon/memory/cuda/context.h"
#include "daemon/memory/cuda/devices.h"
#include "daemon/memory/cuda/driver.h"
#include "daemon/memory/cuda/owned.h"

namespace wcache {

/// What the sizes of slabs are multiples of.
Result<std::uint64_t> slab_granularity(const CudaDriver& driver, const CudaDevice& device, DeviceIpc ipc);

/// Whether the device has `needed` bytes free; over_budget names device, need and what is free. The context
/// is current.
Status check_free_memory(const CudaDriver& driver, const CudaDevice& device, std::uint64_t needed);

/// Device memory of the VMM kind in this process's address space. Needs no context. Borrows the driver.
class SlabMapping {
 public:
  /// Maps the whole allocation; `handle` may be released then. Where the driver has no mappings for reading
  /// alone, one that was asked for can be written.
  static Result<SlabMapping> map(const CudaDriver& driver, const CudaDevice& device,
                                 CUmemGenericAllocationHandle handle, std::uint64_t nbytes,
                                 CUmemAccess_flags access);

  /// The same of a descriptor that was exported here or elsewhere. Borrows it for the call.
  static Result<SlabMapping> import(const CudaDriver& driver, const CudaDevice& device, int fd,
                                    std::uint64_t nbytes, CUmemAccess_flags access);

  SlabMapping(SlabMapping&&) = default;
  SlabMapping& operator=(SlabMapping&&) = delete;

  CUdeviceptr address() const { return reserved_.get(); }
  bool read_only() const { return read_only_; }
  Status unmap();
  /// The device may still use it: it stays as it is for good.
  void forget();

 private:
  explicit SlabMapping(const CudaDriver& driver) : driver_(&driver) {}

  const CudaDriver* driver_;
  CudaOwned<CUdeviceptr> reserved_;
  CudaOwned<CUdeviceptr> mapped_;  // after reserved_: goes before it
  bool read_only_ = false;
};

/// The slabs of an entry on its device, while they are written; dropped, their memory is free again, but for
/// what descriptors of it hold. Borrows the driver; the context must be current whenever one is made or
/// dropped.
class CudaSlabs {
 public:
  /// All or none. Reason::over_budget when the memory is not to be had.
  static Result<CudaSlabs> allocate(const CudaDriver& driver, const CudaDevice& device, DeviceIpc ipc,
                                    std::span<const std::uint64_t> nbytes);

  CudaSlabs(CudaSlabs&&) = default;

  std::size_t size() const { return slabs_.size(); }
  CUdeviceptr address(std::size_t slab) const;
  std::vector<DeviceHandle> handles() const;  ///< legacy

  /// vmm: takes the memory out of this process's address space; what it leaves of it are the descriptors.
  Result<std::vector<Fd>> unmap() &&;

  /// The device may still use it: what this process has of it stays for good.
  void forget();

 private:
  struct Slab {
    CudaOwned<CUdeviceptr> memory;  // legacy
    DeviceHandle handle{};          // legacy
    std::optional<SlabMapping> mapping;
    Fd fd;
  };

  CudaSlabs() = default;
  static Result<Slab> make_vmm(const CudaDriver& driver, const CudaDevice& device, std::uint64_t nbytes);
  static Result<Slab> make_legacy(const CudaDriver& driver, const CudaDevice& device, std::uint64_t nbytes);

  std::vector<Slab> slabs_;
};

}  // namespace wcache

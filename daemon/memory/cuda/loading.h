#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "core/entry_plan.h"
#include "core/result.h"
#include "core/slab_plan.h"
#include "daemon/device_entry.h"
#include "daemon/fill/fill.h"
#include "daemon/fill/sink.h"
#include "daemon/memory/cuda/devices.h"
#include "daemon/memory/cuda/load.h"

namespace wcache {

/// A device and how entries are put on it.
struct CudaTarget {
  std::shared_ptr<const CudaDriver> driver;
  CudaDevice device;
  DeviceIpc ipc = DeviceIpc::vmm;
  std::uint64_t slab_nbytes = kSlabNbytes;  ///< of a slab that holds several tensors
  unsigned staging_buffers = 0;  ///< of each worker of the fill; 0: two more than its reads in flight
  std::chrono::milliseconds idle{10'000};  ///< after the last read the context of a vmm entry is let go of
  std::chrono::milliseconds patience{
      30'000};  ///< a device that has not ended one turn of a read by then hangs
};

/// vmm where the device can, unless asked for otherwise. `unsupported` for vmm on a device that cannot.
Result<DeviceIpc> choose_ipc(const CudaDevice& device, std::optional<DeviceIpc> asked);

/// "cuda-vmm", "cuda-ipc": Placement::ipc_kind.
std::string ipc_kind(DeviceIpc ipc);

/// The weights of one entry on their way onto a device. Dropped at any point it leaves nothing there.
class CudaLoading {
 public:
  /// Cuts the weights of the plan into slabs and makes the context. The device's free memory is looked at:
  /// over_budget names device, need and what is free. Borrows nothing.
  static Result<std::unique_ptr<CudaLoading>> prepare(const EntryPlan& plan, const CudaTarget& target);

  ~CudaLoading();

  const SlabPlan& slabs() const;

  /// The most host memory that the fill takes for its staging buffers.
  std::uint64_t staging_bound(const FillOptions& options) const;

  /// Allocates the slabs.
  Status allocate();

  /// After `allocate`: for the weight images alone, in their order, which is its plan.
  FillSink& sink();

  /// After the fill. A vmm entry has no context any more, nor is its memory mapped here.
  Result<std::unique_ptr<DeviceEntry>> finish();

 private:
  struct State;
  explicit CudaLoading(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace wcache

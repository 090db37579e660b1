#pragma once

#include "core/result.h"
#include "daemon/memory/cuda/devices.h"
#include "daemon/memory/cuda/driver.h"
#include "daemon/memory/cuda/owned.h"

namespace wcache {

/// A hold on a device's primary context, which every other user in this process shares. It takes a few
/// hundred MB of the device, which the last hold that goes frees. Borrows the driver. Move-only.
class CudaContext {
 public:
  /// Does not make it current. `unsupported` where the device takes no further process, as it does in
  /// prohibited and in exclusive-process mode; other errors as of cuda_error.
  static Result<CudaContext> retain(const CudaDriver& driver, const CudaDevice& device);

  const CudaDriver& driver() const { return *driver_; }
  CUcontext get() const { return context_.get(); }

  /// Lets go and says so when the driver refuses, which the destructor cannot.
  Status release();

  /// The device hangs, and letting go would wait for it: the hold stays until the process ends.
  void forget() { context_.forget(); }

 private:
  CudaContext(const CudaDriver& driver, CudaOwned<CUcontext> context)
      : driver_(&driver), context_(std::move(context)) {}

  const CudaDriver* driver_;
  CudaOwned<CUcontext> context_;
};

/// While it lives the context is current on the thread that made it; then what was current before is so
/// again.
class CurrentContext {
 public:
  static Result<CurrentContext> enter(const CudaContext& context);

  /// For giving things back, which goes on whether or not the driver lets it in.
  static CurrentContext enter_to_clean(const CudaContext& context);

  /// Whether the driver let it in.
  explicit operator bool() const { return static_cast<bool>(current_); }

  /// Says so when the driver refuses, which the destructor cannot.
  Status leave();

 private:
  CurrentContext() = default;

  const CudaDriver* driver_ = nullptr;
  CudaOwned<CUcontext> current_;
};

}  // namespace wcache

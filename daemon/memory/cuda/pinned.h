#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <stop_token>

#include "core/fd.h"
#include "core/result.h"
#include "daemon/memory/cuda/driver.h"
#include "daemon/memory/cuda/owned.h"

namespace wcache {

/// Host memory that the device copies from and to by itself: anonymous pages, registered with the driver, at
/// an address that is a multiple of kMaxAlignment. A context must be current whenever one is made, closed or
/// dropped. Borrows the driver.
class PinnedMemory {
 public:
  static Result<PinnedMemory> create(const CudaDriver& driver, std::uint64_t nbytes);

  PinnedMemory(PinnedMemory&&) = default;
  ~PinnedMemory() { reset(); }

  std::byte* data() const { return registered_.get(); }

  /// Gives the memory back. After an error it is still registered.
  Status close();
  /// The same, whatever the driver says to it.
  void reset();

  /// A read may still write into it: the driver lets go of it, but it stays where it is for good.
  void keep_pages();
  /// The device may still read it: it stays as it is for good.
  void forget();

 private:
  PinnedMemory() = default;

  const CudaDriver* driver_ = nullptr;
  Mapping memory_;
  CudaOwned<std::byte*> registered_;  // after memory_: goes before it
};

/// What the driver made for the calls that follow each other on one stream.
Result<CudaOwned<CUstream>> make_stream(const CudaDriver& driver);
Result<CudaOwned<CUevent>> make_event(const CudaDriver& driver);

/// Waits until all that is in the stream has passed: by looking at it again and again, since the driver's own
/// wait never ends on a device that hangs. It looks once at least. CUDA_ERROR_NOT_READY: not before
/// `deadline`, or stopped; else what the driver says.
CUresult wait_for_stream(const CudaDriver& driver, CUstream stream,
                         std::chrono::steady_clock::time_point deadline, const std::stop_token& stop = {});

/// The same before what the stream works with goes; an error is not taken at the first word. After anything
/// but CUDA_SUCCESS nobody knows whether the device still copies.
CUresult drain(const CudaDriver& driver, CUstream stream, std::chrono::steady_clock::time_point deadline);

}  // namespace wcache

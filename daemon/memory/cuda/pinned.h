#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/fd.h"
#include "core/result.h"
#include "daemon/memory/cuda/driver.h"
#include "daemon/memory/cuda/owned.h"

namespace wcache {

/// Host memory that the device copies from and to by itself: anonymous pages, registered with the driver. A
/// context must be current whenever one is made, closed or dropped. Borrows the driver.
class PinnedMemory {
 public:
  static Result<PinnedMemory> create(const CudaDriver& driver, std::uint64_t nbytes);

  PinnedMemory(PinnedMemory&&) = default;
  ~PinnedMemory() { reset(); }

  std::byte* data() const { return memory_.data(); }
  std::uint64_t size() const { return memory_.size(); }

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
  CudaOwned<void*> registered_;  // after memory_: goes before it
};

/// What the driver made for the calls that follow each other on one stream.
Result<CudaOwned<CUstream>> make_stream(const CudaDriver& driver);
Result<CudaOwned<CUevent>> make_event(const CudaDriver& driver);

/// Waits for what is in the stream before its memory goes. False: nobody knows whether the device still
/// copies.
bool drain(const CudaDriver& driver, CUstream stream);

}  // namespace wcache

#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <span>

#include "core/result.h"
#include "daemon/memory/cuda/driver.h"

namespace wcache {

/// Copies from a device that end in time. What the device writes into is memory of their own: where it does
/// not end a copy, stream and memory are left behind for it, and the caller's memory is the caller's again.
/// Safe for concurrent use. Borrows the driver; the context must be current whenever one is used or dropped.
class TimedCopies {
 public:
  /// `patience`: how long the device may take for kAtOnce bytes.
  TimedCopies(const CudaDriver& driver, std::chrono::milliseconds patience);

  /// Nothing may be copying any more.
  ~TimedCopies();

  /// Returns when the bytes are in `out`. timeout: the device does not copy, or kMostLeft copies before have
  /// been left behind and are not done yet; other errors as of cuda_error.
  Status copy(CUdeviceptr from, std::span<std::byte> out);

  static constexpr std::uint64_t kAtOnce = std::uint64_t{4} << 20;
  static constexpr std::size_t kMostLeft = 4;

 private:
  struct Way;  // to one's bytes: stream, event and memory
  Status wait(Way& way) const;
  Status copy_by(Way& way, CUdeviceptr from, std::span<std::byte> out) const;
  Error does_not_answer() const;
  std::size_t drop_those_done();

  const CudaDriver& driver_;
  const std::chrono::milliseconds patience_;
  std::mutex mutex_;
  std::list<std::unique_ptr<Way>> left_;  // guarded by mutex_
};

}  // namespace wcache

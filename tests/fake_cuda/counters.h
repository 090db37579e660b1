#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "tests/fake_cuda/functions.h"

namespace wcache::fake_cuda {

/// The file process/<pid>: records of 64 bytes, a name of 56 (padded with NULs) and a little-endian 64-bit
/// number. In Python: `struct.iter_unpack("<56sQ", data)`. It is there from the process's first driver call,
/// always up to date, and stays when the process has ended. Names: `calls.any`, `calls.<exported name>`,
/// those below, and `contexts_made.<device>`: how often this process made the primary context of each device
/// of the configuration.
struct CounterRecord {
  char name[56];
  std::atomic<std::uint64_t> value;
};
static_assert(sizeof(CounterRecord) == 64);

/// What a process has (live.*) or has done.
#define WCACHE_FAKE_CUDA_COUNTERS(X)                                               \
  X(allocations, "live.allocations")           /* of cuMemAlloc */                 \
  X(handles, "live.handles")                   /* of cuMemCreate and import */     \
  X(mappings, "live.mappings")                 /* of cuMemMap */                   \
  X(reservations, "live.reservations")         /* of cuMemAddressReserve */        \
  X(ipc, "live.ipc")                           /* opens that were not closed */    \
  X(registered, "live.registered")             /* ranges of cuMemHostRegister */   \
  X(host_allocations, "live.host_allocations") /* of cuMemHostAlloc */             \
  X(streams, "live.streams")                                                       \
  X(events, "live.events")                                                         \
  X(contexts, "live.contexts")          /* retains that were not released */       \
  X(pageable_copies, "pageable_copies") /* copies with unregistered host memory */ \
  X(bytes_to_device, "bytes_to_device")                                            \
  X(bytes_from_device, "bytes_from_device")                                        \
  X(sticky_error, "sticky_error") /* 700 once the context is broken */

enum class Counter : std::size_t {
#define X(name, text) name,
  WCACHE_FAKE_CUDA_COUNTERS(X)
#undef X
};

/// A process's counters. Not thread-safe; readers of the file see whole numbers.
class Counters {
 public:
  /// Kept in `path`, or in memory alone where that cannot be.
  explicit Counters(const std::string& path);
  Counters(const Counters&) = delete;
  Counters& operator=(const Counters&) = delete;
  ~Counters();

  void count_call(Function function);
  std::uint64_t calls(Function function) const;
  std::uint64_t all_calls() const;
  void forget_calls();

  void add(Counter counter, std::int64_t difference);
  void set(Counter counter, std::uint64_t value);
  void context_made(int device);

 private:
  CounterRecord* records_ = nullptr;
};

}  // namespace wcache::fake_cuda

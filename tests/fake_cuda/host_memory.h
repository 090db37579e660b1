#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

namespace wcache::fake_cuda {

struct State;

/// Host memory that copies may be asynchronous with.
struct HostMemory {
  enum class Covered { none, part, whole };
  struct Range {
    std::size_t size = 0;
    CUdevice context = 0;
    bool ours = false;  ///< of cuMemHostAlloc
  };
  std::map<std::uintptr_t, Range> ranges;  ///< by first address

  /// Whether one range covers [address, address + size). part: one covers the first byte but not all, which
  /// no copy may have; none: the first byte is in none.
  Covered covers(std::uintptr_t address, std::size_t size) const;
  bool overlaps(std::uintptr_t address, std::size_t size) const;
};

CUresult allocate_host(State& state, CUdevice context, void** address, std::size_t size, unsigned flags);
CUresult free_host(State& state, std::unique_lock<std::mutex>& lock, void* address);
CUresult register_host(State& state, CUdevice context, void* address, std::size_t size, unsigned flags);
CUresult unregister_host(State& state, void* address);
CUresult host_device_pointer(State& state, CUdevice context, CUdeviceptr* out, void* address, unsigned flags);
void release_host_memory_of(State& state, CUdevice context);

}  // namespace wcache::fake_cuda

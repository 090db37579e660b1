#include "tests/fake_cuda/host_memory.h"

#include <sys/mman.h>

#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <string>

#include "tests/fake_cuda/state.h"

namespace wcache::fake_cuda {

namespace {

/// Whether [address, address + size) is mapped, and so as the process's own map says: readable, and writable
/// too.
struct Pages {
  bool readable = true;
  bool writable = true;
};

Pages pages_of(std::uintptr_t address, std::size_t size) {
  Pages pages;
  std::uintptr_t next = address;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; next < address + size && std::getline(maps, line);) {
    std::uintptr_t first = 0, end = 0;
    char permissions[5] = {};
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " %4s", &first, &end, permissions) != 3) continue;
    if (end <= next) continue;
    if (first > next) break;
    pages.readable = pages.readable && permissions[0] == 'r';
    pages.writable = pages.writable && permissions[1] == 'w';
    next = end;
  }
  if (next < address + size) return {false, false};
  return pages;
}

bool has(const State& state, CUdevice device, CUdevice_attribute attribute) {
  return state.devices.attribute(device, attribute) != 0;
}

CUresult check_registration(const State& state, CUdevice device, std::uintptr_t address, std::size_t size,
                            unsigned flags) {
  constexpr unsigned kKnown = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP |
                              CU_MEMHOSTREGISTER_IOMEMORY | CU_MEMHOSTREGISTER_READ_ONLY;
  if (address == 0 || size == 0 || address + size < address || (flags & ~kKnown) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  if ((flags & CU_MEMHOSTREGISTER_IOMEMORY) != 0) return CUDA_ERROR_NOT_PERMITTED;
  const bool coherent = has(state, device, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES);
  const bool read_only = (flags & CU_MEMHOSTREGISTER_READ_ONLY) != 0;
  if (!has(state, device, CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED)) return CUDA_ERROR_NOT_SUPPORTED;
  if (read_only && !coherent && !has(state, device, CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED)) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  if (state.host.overlaps(address, size)) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  const Pages pages = pages_of(address, size);
  const bool usable = pages.readable && (pages.writable || read_only || coherent);
  return usable ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

Counter counter_of(const HostMemory::Range& range) {
  return range.ours ? Counter::host_allocations : Counter::registered;
}

}  // namespace

HostMemory::Covered HostMemory::covers(std::uintptr_t address, std::size_t size) const {
  auto at = ranges.upper_bound(address);
  if (at == ranges.begin()) return Covered::none;
  --at;
  const std::uintptr_t offset = address - at->first;
  if (offset >= at->second.size) return Covered::none;
  return size <= at->second.size - offset ? Covered::whole : Covered::part;
}

bool HostMemory::overlaps(std::uintptr_t address, std::size_t size) const {
  for (const auto& [first, range] : ranges) {
    if (first < address + size && address < first + range.size) return true;
  }
  return false;
}

CUresult allocate_host(State& state, CUdevice context, void** address, std::size_t size, unsigned flags) {
  constexpr unsigned kKnown =
      CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
  if (!address || size == 0 || (flags & ~kKnown) != 0) return CUDA_ERROR_INVALID_VALUE;
  void* made = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (made == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  state.host.ranges[reinterpret_cast<std::uintptr_t>(made)] = {size, context, true};
  state.counters.add(Counter::host_allocations, 1);
  *address = made;
  return CUDA_SUCCESS;
}

CUresult free_host(State& state, std::unique_lock<std::mutex>& lock, void* address) {
  const auto key = reinterpret_cast<std::uintptr_t>(address);
  wait_for_streams(state, lock);
  const auto found = state.host.ranges.find(key);
  if (found == state.host.ranges.end() || !found->second.ours) return CUDA_ERROR_INVALID_VALUE;
  munmap(address, found->second.size);
  state.host.ranges.erase(found);
  state.counters.add(Counter::host_allocations, -1);
  return CUDA_SUCCESS;
}

CUresult register_host(State& state, CUdevice context, void* address, std::size_t size, unsigned flags) {
  const auto key = reinterpret_cast<std::uintptr_t>(address);
  const CUresult result = check_registration(state, context, key, size, flags);
  if (result != CUDA_SUCCESS) return result;
  state.host.ranges[key] = {size, context, false};
  state.counters.add(Counter::registered, 1);
  return CUDA_SUCCESS;
}

CUresult unregister_host(State& state, void* address) {
  if (!address) return CUDA_ERROR_INVALID_VALUE;
  const auto found = state.host.ranges.find(reinterpret_cast<std::uintptr_t>(address));
  if (found == state.host.ranges.end() || found->second.ours) return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  state.host.ranges.erase(found);
  state.counters.add(Counter::registered, -1);
  return CUDA_SUCCESS;
}

CUresult host_device_pointer(State& state, CUdevice context, CUdeviceptr* out, void* address,
                             unsigned flags) {
  const auto key = reinterpret_cast<std::uintptr_t>(address);
  if (!out || flags != 0 || state.host.covers(key, 1) != HostMemory::Covered::whole)
    return CUDA_ERROR_INVALID_VALUE;
  if (!has(state, context, CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY)) return CUDA_ERROR_NOT_SUPPORTED;
  *out = key;
  return CUDA_SUCCESS;
}

void release_host_memory_of(State& state, CUdevice context) {
  std::erase_if(state.host.ranges, [&](const auto& entry) {
    if (entry.second.context != context) return false;
    if (entry.second.ours) munmap(reinterpret_cast<void*>(entry.first), entry.second.size);
    state.counters.add(counter_of(entry.second), -1);
    return true;
  });
}

}  // namespace wcache::fake_cuda

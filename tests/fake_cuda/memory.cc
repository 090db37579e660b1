#include "tests/fake_cuda/memory.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>

#include "tests/fake_cuda/state.h"

namespace wcache::fake_cuda {

namespace {

constexpr std::size_t kAllocationAlignment = 4096;  // 256 is promised

std::uint64_t rounded(const State& state, std::uint64_t size) {
  return (size + state.config.granularity - 1) / state.config.granularity * state.config.granularity;
}

CUresult resolve_mapped(Region& region, CUdeviceptr address, std::uint64_t size, bool write, CUdevice device,
                        std::vector<Piece>& pieces) {
  while (size > 0) {
    auto at = region.mapped.upper_bound(address);
    if (at == region.mapped.begin()) return CUDA_ERROR_ILLEGAL_ADDRESS;
    --at;
    const std::uint64_t offset = address - at->first;
    if (offset >= at->second.size) return CUDA_ERROR_ILLEGAL_ADDRESS;
    const auto access = at->second.access.find(device);
    const unsigned wanted = write ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_READ;
    if (access == at->second.access.end() || (access->second & wanted) != wanted)
      return CUDA_ERROR_ILLEGAL_ADDRESS;
    const std::uint64_t part = std::min(size, at->second.size - offset);
    pieces.push_back({at->second.physical, offset, part});
    address += part;
    size -= part;
  }
  return CUDA_SUCCESS;
}

}  // namespace

bool Physical::is_broken() const {
  struct stat status = {};
  return borrowed && (fstat(fd.get(), &status) != 0 || status.st_nlink == 0 || !is_held(fd.get()));
}

Region* AddressSpace::find(CUdeviceptr address) {
  auto at = regions.upper_bound(address);
  if (at == regions.begin()) return nullptr;
  --at;
  return address - at->first < at->second.size ? &at->second : nullptr;
}

Region* AddressSpace::at(CUdeviceptr address) {
  const auto found = regions.find(address);
  return found == regions.end() ? nullptr : &found->second;
}

Region& AddressSpace::add(Region region) {
  const CUdeviceptr base = region.range.base();
  return regions[base] = std::move(region);
}

CUresult resolve(State& state, CUdeviceptr address, std::uint64_t size, bool write, CUdevice device,
                 std::vector<Piece>& pieces) {
  Region* region = state.addresses.find(address);
  if (!region) return CUDA_ERROR_INVALID_VALUE;
  const std::uint64_t offset = address - region->range.base();
  if (size > region->size - offset) return CUDA_ERROR_INVALID_VALUE;
  if (region->kind == Region::Kind::reservation) {
    return resolve_mapped(*region, address, size, write, device, pieces);
  }
  if (region->physical->is_broken()) return CUDA_ERROR_ILLEGAL_ADDRESS;
  pieces.push_back({region->physical, offset, size});
  return CUDA_SUCCESS;
}

std::uint64_t free_bytes(const State& state, CUdevice device) {
  const int place = state.devices.place(device);
  std::uint64_t used = state.directory.usage(place).bytes;
  for (const SharedDirectory::Context& context : state.directory.contexts()) {
    if (context.device == place) used += state.config.context_bytes;
  }
  const std::uint64_t total = state.devices.at(device).memory;
  return used < total ? total - used : 0;
}

CUresult make_physical(State& state, CUdevice device, SharedDirectory::Kind kind, std::uint64_t size,
                       bool exportable, std::shared_ptr<Physical>& physical) {
  const OwnFd lock = state.directory.lock();
  if (size > state.devices.at(device).memory || rounded(state, size) > free_bytes(state, device)) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  auto made = std::make_shared<Physical>();
  made->place = state.devices.place(device);
  made->kind = kind;
  made->size = size;
  made->exportable = exportable;
  made->fd = state.directory.create_memory(made->place, kind, rounded(state, size), made->name);
  if (!made->fd) return CUDA_ERROR_OPERATING_SYSTEM;
  physical = std::move(made);
  return CUDA_SUCCESS;
}

CUresult memory_info(State& state, CUdevice device, std::size_t* free, std::size_t* total) {
  if (!free || !total) return CUDA_ERROR_INVALID_VALUE;
  const OwnFd lock = state.directory.lock();
  *free = free_bytes(state, device);
  *total = state.devices.at(device).memory;
  return CUDA_SUCCESS;
}

CUresult allocate(State& state, CUdevice device, CUdeviceptr* address, std::size_t size) {
  if (!address || size == 0) return CUDA_ERROR_INVALID_VALUE;
  Region region;
  region.kind = Region::Kind::allocation;
  region.size = size;
  region.context = device;
  const CUresult result =
      make_physical(state, device, SharedDirectory::Kind::legacy, size, false, region.physical);
  if (result != CUDA_SUCCESS) return result;
  region.range = AddressRange::reserve(size, kAllocationAlignment, 0);
  if (!region.range) return CUDA_ERROR_OUT_OF_MEMORY;
  *address = state.addresses.add(std::move(region)).range.base();
  state.counters.add(Counter::allocations, 1);
  return CUDA_SUCCESS;
}

CUresult free_allocation(State& state, std::unique_lock<std::mutex>& lock, CUdeviceptr address) {
  const Region* region = state.addresses.at(address);
  if (!region || region->kind != Region::Kind::allocation) return CUDA_ERROR_INVALID_VALUE;
  wait_for_streams(state, lock);
  region = state.addresses.at(address);  // another thread may have been here meanwhile
  if (!region || region->kind != Region::Kind::allocation) return CUDA_ERROR_INVALID_VALUE;
  std::error_code ignored;
  std::filesystem::remove(state.directory.memory_path(region->physical->name), ignored);
  state.addresses.regions.erase(address);
  state.counters.add(Counter::allocations, -1);
  return state.sticky;
}

void free_memory_of(State& state, CUdevice context) {
  std::erase_if(state.addresses.regions, [&](const auto& entry) {
    const Region& region = entry.second;
    if (region.kind == Region::Kind::reservation || region.context != context) return false;
    if (region.kind == Region::Kind::allocation) {
      std::error_code ignored;
      std::filesystem::remove(state.directory.memory_path(region.physical->name), ignored);
      state.counters.add(Counter::allocations, -1);
    } else {
      state.counters.add(Counter::ipc, -static_cast<std::int64_t>(region.opens));
    }
    return true;
  });
}

}  // namespace wcache::fake_cuda

#include "tests/fake_cuda/vmm.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cstdint>
#include <string>

#include "tests/fake_cuda/state.h"

namespace wcache::fake_cuda {

namespace {

bool is_supported(const State& state, CUdevice device) {
  return state.devices.attribute(device, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) != 0;
}

bool shares_descriptors(const State& state, CUdevice device) {
  return state.devices.attribute(device, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED) !=
         0;
}

CUresult check(const State& state, const CUmemAllocationProp* properties) {
  if (!properties || properties->type != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
  if (properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
  const CUdevice device = properties->location.id;
  if (!state.devices.has(device)) return CUDA_ERROR_INVALID_DEVICE;
  if (!is_supported(state, device)) return CUDA_ERROR_NOT_SUPPORTED;
  if (properties->allocFlags.gpuDirectRDMACapable != 0 &&
      state.devices.attribute(device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED) == 0) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  if (properties->requestedHandleTypes == CU_MEM_HANDLE_TYPE_NONE) return CUDA_SUCCESS;
  if (properties->requestedHandleTypes != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
    return CUDA_ERROR_NOT_SUPPORTED;
  return shares_descriptors(state, device) ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

CUmemGenericAllocationHandle add_handle(State& state, std::shared_ptr<Physical> physical) {
  const CUmemGenericAllocationHandle handle = state.next_handle();
  state.handles[handle] = std::move(physical);
  state.counters.add(Counter::handles, 1);
  return handle;
}

/// The memory whose descriptor this is, by the file it is open on; null when it is none of this machine's.
std::shared_ptr<Physical> recognise(const State& state, int fd) {
  std::error_code error;
  const std::filesystem::path path =
      std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd), error);
  const std::optional<SharedDirectory::MemoryName> name =
      SharedDirectory::parse_memory_name(path.filename().string());
  if (error || !name || name->kind != SharedDirectory::Kind::vmm) return nullptr;
  struct stat ours = {};
  struct stat theirs = {};
  if (stat(state.directory.memory_path(path.filename()).c_str(), &ours) != 0 || fstat(fd, &theirs) != 0)
    return nullptr;
  if (ours.st_dev != theirs.st_dev || ours.st_ino != theirs.st_ino) return nullptr;
  auto physical = std::make_shared<Physical>();
  physical->name = path.filename();
  physical->place = name->device;
  physical->size = static_cast<std::uint64_t>(theirs.st_size);
  physical->exportable = true;
  return physical;
}

/// The reservation that [address, address + size) lies in.
Region* reservation(State& state, CUdeviceptr address, std::size_t size) {
  Region* region = state.addresses.find(address);
  if (!region || region->kind != Region::Kind::reservation) return nullptr;
  return size <= region->size - (address - region->range.base()) ? region : nullptr;
}

bool is_free(const Region& region, CUdeviceptr address, std::size_t size) {
  for (const auto& [base, mapped] : region.mapped) {
    if (base < address + size && address < base + mapped.size) return false;
  }
  return true;
}

/// The mappings that [address, address + size) is made of, each whole; empty when it is not.
std::vector<Mapped*> whole_mappings(Region& region, CUdeviceptr address, std::size_t size) {
  std::vector<Mapped*> found;
  const CUdeviceptr end = address + size;
  for (auto at = region.mapped.find(address); at != region.mapped.end() && at->first == address; ++at) {
    found.push_back(&at->second);
    address += at->second.size;
    if (address == end) return found;
  }
  return {};
}

CUresult check_access(const State& state, const CUmemAccessDesc& description,
                      const std::vector<Mapped*>& mappings) {
  if (description.location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
  if (!state.devices.has(description.location.id)) return CUDA_ERROR_INVALID_DEVICE;
  const int flags = static_cast<int>(description.flags);
  if (flags != CU_MEM_ACCESS_FLAGS_PROT_NONE && flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
      flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (flags == CU_MEM_ACCESS_FLAGS_PROT_READ && !state.config.read_only_access)
    return CUDA_ERROR_NOT_SUPPORTED;
  for (const Mapped* mapped : mappings) {
    const bool is_peer = mapped->physical->place != state.devices.place(description.location.id);
    if (is_peer && !state.config.peer_access) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  }
  return CUDA_SUCCESS;
}

}  // namespace

CUresult granularity(State& state, std::size_t* bytes, const CUmemAllocationProp* properties,
                     CUmemAllocationGranularity_flags option) {
  const int which = static_cast<int>(option);
  if (!bytes ||
      (which != CU_MEM_ALLOC_GRANULARITY_MINIMUM && which != CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (const CUresult result = check(state, properties); result != CUDA_SUCCESS) return result;
  *bytes = state.config.granularity;
  return CUDA_SUCCESS;
}

CUresult create(State& state, CUmemGenericAllocationHandle* handle, std::size_t size,
                const CUmemAllocationProp* properties, unsigned long long flags) {
  if (!handle || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = check(state, properties); result != CUDA_SUCCESS) return result;
  if (size == 0 || size % state.config.granularity != 0) return CUDA_ERROR_INVALID_VALUE;
  const bool exportable = properties->requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE;
  std::shared_ptr<Physical> physical;
  const CUresult result =
      make_physical(state, properties->location.id, SharedDirectory::Kind::vmm, size, exportable, physical);
  if (result != CUDA_SUCCESS) return result;
  *handle = add_handle(state, std::move(physical));
  return CUDA_SUCCESS;
}

CUresult release(State& state, CUmemGenericAllocationHandle handle) {
  if (state.handles.erase(handle) == 0) return CUDA_ERROR_INVALID_VALUE;
  state.counters.add(Counter::handles, -1);
  return CUDA_SUCCESS;
}

CUresult export_handle(State& state, void* out, CUmemGenericAllocationHandle handle,
                       CUmemAllocationHandleType type, unsigned long long flags) {
  const auto found = state.handles.find(handle);
  if (!out || found == state.handles.end() || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
  if (!found->second->exportable) return CUDA_ERROR_INVALID_VALUE;
  const int fd = fcntl(found->second->fd.get(), F_DUPFD_CLOEXEC, 3);
  if (fd < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  *static_cast<int*>(out) = fd;
  return CUDA_SUCCESS;
}

CUresult import_handle(State& state, CUmemGenericAllocationHandle* handle, void* os_handle,
                       CUmemAllocationHandleType type) {
  if (!handle) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
  const auto number = reinterpret_cast<std::intptr_t>(os_handle);
  if (number < 0 || number > INT32_MAX) return CUDA_ERROR_INVALID_VALUE;
  const int fd = static_cast<int>(number);
  std::shared_ptr<Physical> physical = recognise(state, fd);
  if (!physical) return CUDA_ERROR_INVALID_VALUE;
  const std::optional<CUdevice> device = state.devices.ordinal(physical->place);
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  if (!is_supported(state, *device) || !shares_descriptors(state, *device)) return CUDA_ERROR_NOT_SUPPORTED;
  physical->fd = OwnFd(fcntl(fd, F_DUPFD_CLOEXEC, 3));
  if (!physical->fd) return CUDA_ERROR_OPERATING_SYSTEM;
  *handle = add_handle(state, std::move(physical));
  return CUDA_SUCCESS;
}

CUresult reserve(State& state, CUdeviceptr* address, std::size_t size, std::size_t alignment,
                 CUdeviceptr hint, unsigned long long flags) {
  if (!address || flags != 0 || size == 0 || size % state.config.granularity != 0)
    return CUDA_ERROR_INVALID_VALUE;
  if ((alignment & (alignment - 1)) != 0) return CUDA_ERROR_INVALID_VALUE;
  std::size_t wanted = 4096;
  while (wanted < alignment || (alignment == 0 && wanted < state.config.granularity)) wanted *= 2;
  Region region;
  region.kind = Region::Kind::reservation;
  region.size = size;
  region.range = AddressRange::reserve(size, wanted, hint);
  if (!region.range) return CUDA_ERROR_OUT_OF_MEMORY;
  *address = state.addresses.add(std::move(region)).range.base();
  state.counters.add(Counter::reservations, 1);
  return CUDA_SUCCESS;
}

CUresult free_reservation(State& state, CUdeviceptr address, std::size_t size) {
  const Region* region = state.addresses.at(address);
  if (!region || region->kind != Region::Kind::reservation) return CUDA_ERROR_INVALID_VALUE;
  if (region->size != size || !region->mapped.empty()) return CUDA_ERROR_INVALID_VALUE;
  state.addresses.regions.erase(address);
  state.counters.add(Counter::reservations, -1);
  return CUDA_SUCCESS;
}

CUresult map(State& state, CUdeviceptr address, std::size_t size, std::size_t offset,
             CUmemGenericAllocationHandle handle, unsigned long long flags) {
  const auto found = state.handles.find(handle);
  Region* region = reservation(state, address, size);
  if (!region || found == state.handles.end() || offset != 0 || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (size != found->second->size || !is_free(*region, address, size)) return CUDA_ERROR_INVALID_VALUE;
  if ((address - region->range.base()) % state.config.granularity != 0) return CUDA_ERROR_INVALID_VALUE;
  region->mapped[address] = Mapped{found->second, size, {}};
  state.counters.add(Counter::mappings, 1);
  return CUDA_SUCCESS;
}

CUresult set_access(State& state, CUdeviceptr address, std::size_t size, const CUmemAccessDesc* descriptions,
                    std::size_t count) {
  Region* region = reservation(state, address, size);
  if (!region || !descriptions || count == 0) return CUDA_ERROR_INVALID_VALUE;
  const std::vector<Mapped*> mappings = whole_mappings(*region, address, size);
  if (mappings.empty()) return CUDA_ERROR_INVALID_VALUE;
  for (std::size_t i = 0; i < count; ++i) {
    if (const CUresult result = check_access(state, descriptions[i], mappings); result != CUDA_SUCCESS)
      return result;
  }
  for (std::size_t i = 0; i < count; ++i) {
    for (Mapped* mapped : mappings) {
      mapped->access[descriptions[i].location.id] = static_cast<unsigned>(descriptions[i].flags);
    }
  }
  return CUDA_SUCCESS;
}

CUresult unmap(State& state, CUdeviceptr address, std::size_t size) {
  Region* region = reservation(state, address, size);
  if (!region) return CUDA_ERROR_INVALID_VALUE;
  const auto found = region->mapped.find(address);
  if (found == region->mapped.end() || found->second.size != size) return CUDA_ERROR_INVALID_VALUE;
  region->mapped.erase(found);
  state.counters.add(Counter::mappings, -1);
  return CUDA_SUCCESS;
}

}  // namespace wcache::fake_cuda

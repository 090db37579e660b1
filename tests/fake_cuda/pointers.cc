// Questions about device pointers.
#include <fcntl.h>

#include <string>

#include "tests/fake_cuda/memory.h"
#include "tests/fake_cuda/state.h"

namespace wcache::fake_cuda {

namespace {

/// What one device pointer points into.
struct Target {
  CUdeviceptr base = 0;
  std::uint64_t size = 0;
  const Region* region = nullptr;
  const Physical* physical = nullptr;
  const Mapped* mapped = nullptr;
};

/// Without physical when the address is reserved only, without region when it is none of the device's.
Target target_of(State& state, CUdeviceptr address) {
  Region* region = state.addresses.find(address);
  if (!region) return {};
  if (region->kind != Region::Kind::reservation) {
    return {region->range.base(), region->size, region, region->physical.get(), nullptr};
  }
  auto at = region->mapped.upper_bound(address);
  if (at == region->mapped.begin()) return {0, 0, region, nullptr, nullptr};
  --at;
  if (address - at->first >= at->second.size) return {0, 0, region, nullptr, nullptr};
  return {at->first, at->second.size, region, at->second.physical.get(), &at->second};
}

template <class Value>
CUresult give(void* data, Value value) {
  *static_cast<Value*>(data) = value;
  return CUDA_SUCCESS;
}

CUresult host_attribute(void* data, CUpointer_attribute attribute, CUdeviceptr address) {
  if (attribute == CU_POINTER_ATTRIBUTE_MEMORY_TYPE) return give<unsigned>(data, CU_MEMORYTYPE_HOST);
  if (attribute == CU_POINTER_ATTRIBUTE_HOST_POINTER || attribute == CU_POINTER_ATTRIBUTE_DEVICE_POINTER) {
    return give<CUdeviceptr>(data, address);
  }
  if (attribute == CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE) return give<unsigned>(data, 0);
  return CUDA_ERROR_INVALID_VALUE;
}

unsigned access_of(const Target& target, CUdevice device) {
  if (!target.mapped) return CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  const auto access = target.mapped->access.find(device);
  return access == target.mapped->access.end() ? 0 : access->second;
}

}  // namespace

CUresult address_range(State& state, CUdeviceptr* base, std::size_t* size, CUdeviceptr address) {
  const Target target = target_of(state, address);
  if (!target.physical) return CUDA_ERROR_NOT_FOUND;
  if (base) *base = target.base;
  if (size) *size = target.size;
  return CUDA_SUCCESS;
}

CUresult pointer_attribute(State& state, void* data, CUpointer_attribute attribute, CUdeviceptr address) {
  if (!data) return CUDA_ERROR_INVALID_VALUE;
  if (state.host.covers(address, 1) == HostMemory::Covered::whole)
    return host_attribute(data, attribute, address);
  const Target target = target_of(state, address);
  if (attribute == CU_POINTER_ATTRIBUTE_MAPPED) return give<unsigned>(data, target.physical ? 1 : 0);
  if (!target.physical) return CUDA_ERROR_INVALID_VALUE;
  const CUdevice device = state.devices.ordinal(target.physical->place).value_or(-1);
  switch (static_cast<int>(attribute)) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return give<unsigned>(data, CU_MEMORYTYPE_DEVICE);
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      return give<CUdeviceptr>(data, address);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return give<int>(data, device);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return give<unsigned>(data, target.region->kind == Region::Kind::allocation ? 1 : 0);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return give<CUdeviceptr>(data, target.base);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return give<std::size_t>(data, target.size);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      return give<unsigned long long>(
          data, target.physical->exportable ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : 0);
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      return give<unsigned>(data, access_of(target, device));
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult export_dma_buf(State& state, CUdevice device, void* out, CUdeviceptr address, std::size_t size,
                        CUmemRangeHandleType type, unsigned long long flags) {
  if (!out || size == 0 || type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD || flags != 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (state.devices.attribute(device, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED) == 0)
    return CUDA_ERROR_NOT_SUPPORTED;
  const Target target = target_of(state, address);
  if (!target.physical || size > target.size - (address - target.base)) return CUDA_ERROR_INVALID_VALUE;
  // An open file description of its own: a DMA buffer does not count for who lives how long.
  const std::string path = "/proc/self/fd/" + std::to_string(target.physical->fd.get());
  OwnFd fd(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!fd) return CUDA_ERROR_OPERATING_SYSTEM;
  return give<int>(out, fd.release());
}

}  // namespace wcache::fake_cuda

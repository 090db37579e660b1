#include "daemon/memory/cuda/slabs.h"

#include <cstring>
#include <string>
#include <utility>

#include "core/format.h"

namespace wcache {
namespace {

/// The driver cuts small allocations out of blocks of this size and hands out the whole block's handle.
constexpr std::uint64_t kLegacyGranularity = std::uint64_t{2} << 20;

CUmemAllocationProp properties(const CudaDevice& device) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop.location.id = device.ordinal;
  return prop;
}

std::string allocating(const CudaDevice& device, std::uint64_t nbytes) {
  return "allocating " + human_size(nbytes) + " on " + device.uuid;
}

/// A handle is one of a whole allocation: what lies in the midst of one would come with the wrong address.
Status check_whole(const CudaDriver& driver, const CudaDevice& device, CUdeviceptr at, std::uint64_t nbytes) {
  CUdeviceptr base = 0;
  std::size_t size = 0;
  if (auto s = cuda_check(driver, "asking where an allocation on " + device.uuid + " begins",
                          driver.cuMemGetAddressRange(&base, &size, at));
      !s)
    return s;
  if (base == at && size >= nbytes) return {};
  return fail(Reason::unsupported,
              "memory of " + device.uuid + " is cut out of a larger allocation: its handle would be of " +
                  std::to_string(size) + " bytes, of which the slab begins at " + std::to_string(at - base),
              "use --ipc vmm where the device can, or report this with the driver's version");
}

CudaOwned<CUmemGenericAllocationHandle> own(const CudaDriver& driver, CUmemGenericAllocationHandle handle) {
  return {handle, [&driver](CUmemGenericAllocationHandle h) { return driver.cuMemRelease(h); }};
}

}  // namespace

Result<std::uint64_t> slab_granularity(const CudaDriver& driver, const CudaDevice& device, DeviceIpc ipc) {
  if (ipc == DeviceIpc::legacy) return kLegacyGranularity;
  const CUmemAllocationProp prop = properties(device);
  std::size_t unit = 0;
  if (auto s =
          cuda_check(driver, "asking for the granularity of " + device.uuid,
                     driver.cuMemGetAllocationGranularity(&unit, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
      !s)
    return fail(s.error());
  return unit;
}

Status check_free_memory(const CudaDriver& driver, const CudaDevice& device, std::uint64_t needed) {
  std::size_t free = 0;
  std::size_t total = 0;
  if (auto s = cuda_check(driver, "asking for the free memory of " + device.uuid,
                          driver.cuMemGetInfo(&free, &total));
      !s)
    return s;
  if (needed <= free) return {};
  return fail(Reason::over_budget,
              human_size(needed) + " (" + std::to_string(needed) +
                  " bytes) of device memory are needed, and " + device.uuid + " (" + device.name + ") has " +
                  human_size(free) + " (" + std::to_string(free) + " bytes) free of " + human_size(total),
              "free memory of the device (nvidia-smi shows who holds it), or evict entries", "--device");
}

Result<SlabMapping> SlabMapping::map(const CudaDriver& driver, const CudaDevice& device,
                                     CUmemGenericAllocationHandle handle, std::uint64_t nbytes,
                                     CUmemAccess_flags access) {
  const std::string what = "mapping " + human_size(nbytes) + " of " + device.uuid;
  SlabMapping mapping(driver);
  CUdeviceptr at = 0;
  if (auto s = cuda_check(driver, what, driver.cuMemAddressReserve(&at, nbytes, 0, 0, 0),
                          "what is short is not the device's memory but the process's address space, or the "
                          "host's memory: see ulimit -v");
      !s)
    return fail(s.error());
  mapping.reserved_ = {at, [&driver, nbytes](CUdeviceptr p) { return driver.cuMemAddressFree(p, nbytes); }};
  if (auto s = cuda_check(driver, what, driver.cuMemMap(at, nbytes, 0, handle, 0)); !s)
    return fail(s.error());
  mapping.mapped_ = {at, [&driver, nbytes](CUdeviceptr p) { return driver.cuMemUnmap(p, nbytes); }};
  CUmemAccessDesc allowed{};
  allowed.location = properties(device).location;
  allowed.flags = access;
  CUresult result = driver.cuMemSetAccess(at, nbytes, &allowed, 1);
  mapping.read_only_ = access == CU_MEM_ACCESS_FLAGS_PROT_READ;
  // Whether there are read-only mappings is not to be asked, only to be tried.
  if (mapping.read_only_ && (result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_NOT_SUPPORTED)) {
    mapping.read_only_ = false;
    allowed.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    result = driver.cuMemSetAccess(at, nbytes, &allowed, 1);
  }
  if (auto s = cuda_check(driver, what, result); !s) return fail(s.error());
  return mapping;
}

Result<SlabMapping> SlabMapping::import(const CudaDriver& driver, const CudaDevice& device, int fd,
                                        std::uint64_t nbytes, CUmemAccess_flags access) {
  CUmemGenericAllocationHandle handle = 0;
  // The driver takes the descriptor's number where it asks for a pointer.
  if (auto s = cuda_check(driver, "importing a slab of " + device.uuid,
                          driver.cuMemImportFromShareableHandle(
                              &handle, reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)),
                              CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
      !s)
    return fail(s.error());
  auto owned = own(driver, handle);
  auto mapping = map(driver, device, handle, nbytes, access);
  if (!mapping) return mapping;
  if (auto s = cuda_check(driver, "importing a slab of " + device.uuid, owned.close()); !s)
    return fail(s.error());
  return mapping;
}

void SlabMapping::forget() {
  mapped_.forget();
  reserved_.forget();
}

Status SlabMapping::unmap() {
  if (auto s = cuda_check(*driver_, "unmapping device memory", mapped_.close()); !s) return s;
  return cuda_check(*driver_, "unmapping device memory", reserved_.close());
}

Result<CudaSlabs> CudaSlabs::allocate(const CudaDriver& driver, const CudaDevice& device, DeviceIpc ipc,
                                      std::span<const std::uint64_t> nbytes) {
  CudaSlabs slabs;
  for (const std::uint64_t size : nbytes) {
    auto slab = ipc == DeviceIpc::vmm ? make_vmm(driver, device, size) : make_legacy(driver, device, size);
    if (!slab) return fail(slab.error());
    slabs.slabs_.push_back(std::move(*slab));
  }
  return slabs;
}

Result<CudaSlabs::Slab> CudaSlabs::make_vmm(const CudaDriver& driver, const CudaDevice& device,
                                            std::uint64_t nbytes) {
  Slab slab;
  const CUmemAllocationProp prop = properties(device);
  CUmemGenericAllocationHandle handle = 0;
  if (auto s = cuda_check(driver, allocating(device, nbytes), driver.cuMemCreate(&handle, nbytes, &prop, 0));
      !s)
    return fail(s.error());
  auto owned = own(driver, handle);
  int fd = -1;
  if (auto s = cuda_check(
          driver, "exporting memory of " + device.uuid + " as a descriptor",
          driver.cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
      !s)
    return fail(s.error());
  slab.fd = Fd::adopt(fd);
  auto mapping = SlabMapping::map(driver, device, handle, nbytes, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  if (!mapping) return fail(mapping.error());
  slab.mapping.emplace(std::move(*mapping));
  if (auto s = cuda_check(driver, allocating(device, nbytes), owned.close()); !s) return fail(s.error());
  return slab;
}

Result<CudaSlabs::Slab> CudaSlabs::make_legacy(const CudaDriver& driver, const CudaDevice& device,
                                               std::uint64_t nbytes) {
  Slab slab;
  CUdeviceptr at = 0;
  if (auto s = cuda_check(driver, allocating(device, nbytes), driver.cuMemAlloc(&at, nbytes)); !s)
    return fail(s.error());
  slab.memory = {at, [&driver](CUdeviceptr p) { return driver.cuMemFree(p); }};
  if (auto s = check_whole(driver, device, at, nbytes); !s) return fail(s.error());
  CUipcMemHandle handle{};
  if (auto s = cuda_check(driver, "exporting memory of " + device.uuid + " as a CUDA IPC handle",
                          driver.cuIpcGetMemHandle(&handle, at));
      !s)
    return fail(s.error());
  static_assert(sizeof handle == sizeof slab.handle);
  std::memcpy(slab.handle.data(), &handle, sizeof handle);
  return slab;
}

CUdeviceptr CudaSlabs::address(std::size_t slab) const {
  return slabs_[slab].mapping ? slabs_[slab].mapping->address() : slabs_[slab].memory.get();
}

std::vector<DeviceHandle> CudaSlabs::handles() const {
  std::vector<DeviceHandle> handles;
  for (const Slab& slab : slabs_)
    if (slab.memory) handles.push_back(slab.handle);
  return handles;
}

void CudaSlabs::forget() {
  for (Slab& slab : slabs_) {
    slab.memory.forget();
    if (slab.mapping) slab.mapping->forget();
  }
}

Result<std::vector<Fd>> CudaSlabs::unmap() && {
  std::vector<Fd> descriptors;
  for (Slab& slab : slabs_) {
    if (auto s = slab.mapping->unmap(); !s) return fail(s.error());
    descriptors.push_back(std::move(slab.fd));
  }
  return descriptors;
}

}  // namespace wcache

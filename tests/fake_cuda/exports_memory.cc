// The exported functions about memory.
#include "tests/fake_cuda/copies.h"
#include "tests/fake_cuda/enter.h"
#include "tests/fake_cuda/legacy_ipc.h"
#include "tests/fake_cuda/vmm.h"

using wcache::fake_cuda::Call;
using wcache::fake_cuda::Copy;
using wcache::fake_cuda::enter;
using wcache::fake_cuda::Function;
using wcache::fake_cuda::Needs;
namespace fake = wcache::fake_cuda;

namespace {

CUdeviceptr number(const void* address) {
  return reinterpret_cast<CUdeviceptr>(address);
}

CUresult copy(Function function, Copy::Kind kind, CUdeviceptr to, CUdeviceptr from, size_t size,
              CUstream stream) {
  return enter(function, Needs::context, [&](const Call& call) {
    return fake::ask_copy(call.state, call.lock, call.device, Copy{kind, to, from, size}, stream);
  });
}

}  // namespace

extern "C" {

CUresult CUDAAPI cuMemGetInfo_v2(size_t* free, size_t* total) {
  return enter(Function::cuMemGetInfo_v2, Needs::context,
               [&](const Call& call) { return fake::memory_info(call.state, call.device, free, total); });
}

CUresult CUDAAPI cuMemAlloc_v2(CUdeviceptr* address, size_t size) {
  return enter(Function::cuMemAlloc_v2, Needs::context,
               [&](const Call& call) { return fake::allocate(call.state, call.device, address, size); });
}

CUresult CUDAAPI cuMemFree_v2(CUdeviceptr address) {
  return enter(Function::cuMemFree_v2, Needs::context,
               [&](const Call& call) { return fake::free_allocation(call.state, call.lock, address); });
}

CUresult CUDAAPI cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* size, CUdeviceptr address) {
  return enter(Function::cuMemGetAddressRange_v2, Needs::context,
               [&](const Call& call) { return fake::address_range(call.state, base, size, address); });
}

CUresult CUDAAPI cuPointerGetAttribute(void* out, CUpointer_attribute attribute, CUdeviceptr address) {
  return enter(Function::cuPointerGetAttribute, Needs::context, [&](const Call& call) {
    return fake::pointer_attribute(call.state, out, attribute, address);
  });
}

CUresult CUDAAPI cuMemGetHandleForAddressRange(void* out, CUdeviceptr address, size_t size,
                                               CUmemRangeHandleType type, unsigned long long flags) {
  return enter(Function::cuMemGetHandleForAddressRange, Needs::context, [&](const Call& call) {
    return fake::export_dma_buf(call.state, call.device, out, address, size, type, flags);
  });
}

CUresult CUDAAPI cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr address) {
  return enter(Function::cuIpcGetMemHandle, Needs::context,
               [&](const Call& call) { return fake::get_ipc_handle(call.state, handle, address); });
}

CUresult CUDAAPI cuIpcOpenMemHandle_v2(CUdeviceptr* address, CUipcMemHandle handle, unsigned int flags) {
  return enter(Function::cuIpcOpenMemHandle_v2, Needs::context, [&](const Call& call) {
    return fake::open_ipc_handle(call.state, call.device, address, handle, flags);
  });
}

CUresult CUDAAPI cuIpcCloseMemHandle(CUdeviceptr address) {
  return enter(Function::cuIpcCloseMemHandle, Needs::context,
               [&](const Call& call) { return fake::close_ipc_handle(call.state, address); });
}

CUresult CUDAAPI cuMemGetAllocationGranularity(size_t* out, const CUmemAllocationProp* properties,
                                               CUmemAllocationGranularity_flags option) {
  return enter(Function::cuMemGetAllocationGranularity, Needs::initialised,
               [&](const Call& call) { return fake::granularity(call.state, out, properties, option); });
}

CUresult CUDAAPI cuMemCreate(CUmemGenericAllocationHandle* handle, size_t size,
                             const CUmemAllocationProp* properties, unsigned long long flags) {
  return enter(Function::cuMemCreate, Needs::initialised,
               [&](const Call& call) { return fake::create(call.state, handle, size, properties, flags); });
}

CUresult CUDAAPI cuMemRelease(CUmemGenericAllocationHandle handle) {
  return enter(Function::cuMemRelease, Needs::initialised,
               [&](const Call& call) { return fake::release(call.state, handle); });
}

CUresult CUDAAPI cuMemExportToShareableHandle(void* out, CUmemGenericAllocationHandle handle,
                                              CUmemAllocationHandleType type, unsigned long long flags) {
  return enter(Function::cuMemExportToShareableHandle, Needs::initialised,
               [&](const Call& call) { return fake::export_handle(call.state, out, handle, type, flags); });
}

CUresult CUDAAPI cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* os_handle,
                                                CUmemAllocationHandleType type) {
  return enter(Function::cuMemImportFromShareableHandle, Needs::initialised,
               [&](const Call& call) { return fake::import_handle(call.state, handle, os_handle, type); });
}

CUresult CUDAAPI cuMemAddressReserve(CUdeviceptr* address, size_t size, size_t alignment, CUdeviceptr hint,
                                     unsigned long long flags) {
  return enter(Function::cuMemAddressReserve, Needs::initialised, [&](const Call& call) {
    return fake::reserve(call.state, address, size, alignment, hint, flags);
  });
}

CUresult CUDAAPI cuMemAddressFree(CUdeviceptr address, size_t size) {
  return enter(Function::cuMemAddressFree, Needs::initialised,
               [&](const Call& call) { return fake::free_reservation(call.state, address, size); });
}

CUresult CUDAAPI cuMemMap(CUdeviceptr address, size_t size, size_t offset,
                          CUmemGenericAllocationHandle handle, unsigned long long flags) {
  return enter(Function::cuMemMap, Needs::initialised,
               [&](const Call& call) { return fake::map(call.state, address, size, offset, handle, flags); });
}

CUresult CUDAAPI cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc* descriptions,
                                size_t count) {
  return enter(Function::cuMemSetAccess, Needs::initialised, [&](const Call& call) {
    return fake::set_access(call.state, address, size, descriptions, count);
  });
}

CUresult CUDAAPI cuMemUnmap(CUdeviceptr address, size_t size) {
  return enter(Function::cuMemUnmap, Needs::initialised,
               [&](const Call& call) { return fake::unmap(call.state, address, size); });
}

CUresult CUDAAPI cuMemHostAlloc(void** address, size_t size, unsigned int flags) {
  return enter(Function::cuMemHostAlloc, Needs::context, [&](const Call& call) {
    return fake::allocate_host(call.state, call.device, address, size, flags);
  });
}

CUresult CUDAAPI cuMemFreeHost(void* address) {
  return enter(Function::cuMemFreeHost, Needs::context,
               [&](const Call& call) { return fake::free_host(call.state, call.lock, address); });
}

CUresult CUDAAPI cuMemHostRegister_v2(void* address, size_t size, unsigned int flags) {
  return enter(Function::cuMemHostRegister_v2, Needs::context, [&](const Call& call) {
    return fake::register_host(call.state, call.device, address, size, flags);
  });
}

CUresult CUDAAPI cuMemHostUnregister(void* address) {
  return enter(Function::cuMemHostUnregister, Needs::context,
               [&](const Call& call) { return fake::unregister_host(call.state, address); });
}

CUresult CUDAAPI cuMemHostGetDevicePointer_v2(CUdeviceptr* out, void* address, unsigned int flags) {
  return enter(Function::cuMemHostGetDevicePointer_v2, Needs::context, [&](const Call& call) {
    return fake::host_device_pointer(call.state, call.device, out, address, flags);
  });
}

CUresult CUDAAPI cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t size, CUstream stream) {
  return copy(Function::cuMemcpyHtoDAsync_v2, Copy::Kind::to_device, to, number(from), size, stream);
}

CUresult CUDAAPI cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t size, CUstream stream) {
  return copy(Function::cuMemcpyDtoHAsync_v2, Copy::Kind::from_device, number(to), from, size, stream);
}

CUresult CUDAAPI cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream) {
  return copy(Function::cuMemcpyDtoDAsync_v2, Copy::Kind::on_device, to, from, size, stream);
}

}  // extern "C"

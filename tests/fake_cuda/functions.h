#pragma once

#include <cuda.h>

#include <array>
#include <cstddef>
#include <string_view>

// cuda.h names only the second version; a driver has both.
#undef cuDeviceGetUuid
extern "C" CUresult CUDAAPI cuDeviceGetUuid(CUuuid* uuid, CUdevice device);

namespace wcache::fake_cuda {

/// Every driver function the fake exports: exported name, base name (as cuGetProcAddress takes it), CUDA
/// version that brought this version of it.
#define WCACHE_FAKE_CUDA_FUNCTIONS(X)                                        \
  X(cuInit, "cuInit", 2000)                                                  \
  X(cuDriverGetVersion, "cuDriverGetVersion", 2020)                          \
  X(cuGetErrorName, "cuGetErrorName", 6000)                                  \
  X(cuGetErrorString, "cuGetErrorString", 6000)                              \
  X(cuGetProcAddress_v2, "cuGetProcAddress", 12000)                          \
  X(cuDeviceGetCount, "cuDeviceGetCount", 2000)                              \
  X(cuDeviceGet, "cuDeviceGet", 2000)                                        \
  X(cuDeviceGetUuid, "cuDeviceGetUuid", 9020)                                \
  X(cuDeviceGetUuid_v2, "cuDeviceGetUuid", 11040)                            \
  X(cuDeviceGetName, "cuDeviceGetName", 2000)                                \
  X(cuDeviceGetPCIBusId, "cuDeviceGetPCIBusId", 4010)                        \
  X(cuDeviceTotalMem_v2, "cuDeviceTotalMem", 3020)                           \
  X(cuDeviceGetAttribute, "cuDeviceGetAttribute", 2000)                      \
  X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", 7000)              \
  X(cuDevicePrimaryCtxRelease_v2, "cuDevicePrimaryCtxRelease", 11000)        \
  X(cuCtxSetCurrent, "cuCtxSetCurrent", 4000)                                \
  X(cuCtxPushCurrent_v2, "cuCtxPushCurrent", 4000)                           \
  X(cuCtxPopCurrent_v2, "cuCtxPopCurrent", 4000)                             \
  X(cuCtxGetCurrent, "cuCtxGetCurrent", 4000)                                \
  X(cuCtxGetDevice, "cuCtxGetDevice", 2000)                                  \
  X(cuCtxSynchronize, "cuCtxSynchronize", 2000)                              \
  X(cuMemGetInfo_v2, "cuMemGetInfo", 3020)                                   \
  X(cuMemAlloc_v2, "cuMemAlloc", 3020)                                       \
  X(cuMemFree_v2, "cuMemFree", 3020)                                         \
  X(cuMemGetAddressRange_v2, "cuMemGetAddressRange", 3020)                   \
  X(cuPointerGetAttribute, "cuPointerGetAttribute", 4000)                    \
  X(cuIpcGetMemHandle, "cuIpcGetMemHandle", 4010)                            \
  X(cuIpcOpenMemHandle_v2, "cuIpcOpenMemHandle", 11000)                      \
  X(cuIpcCloseMemHandle, "cuIpcCloseMemHandle", 4010)                        \
  X(cuMemGetAllocationGranularity, "cuMemGetAllocationGranularity", 10020)   \
  X(cuMemCreate, "cuMemCreate", 10020)                                       \
  X(cuMemRelease, "cuMemRelease", 10020)                                     \
  X(cuMemExportToShareableHandle, "cuMemExportToShareableHandle", 10020)     \
  X(cuMemImportFromShareableHandle, "cuMemImportFromShareableHandle", 10020) \
  X(cuMemAddressReserve, "cuMemAddressReserve", 10020)                       \
  X(cuMemAddressFree, "cuMemAddressFree", 10020)                             \
  X(cuMemMap, "cuMemMap", 10020)                                             \
  X(cuMemSetAccess, "cuMemSetAccess", 10020)                                 \
  X(cuMemUnmap, "cuMemUnmap", 10020)                                         \
  X(cuMemGetHandleForAddressRange, "cuMemGetHandleForAddressRange", 11070)   \
  X(cuMemHostAlloc, "cuMemHostAlloc", 2020)                                  \
  X(cuMemFreeHost, "cuMemFreeHost", 2000)                                    \
  X(cuMemHostRegister_v2, "cuMemHostRegister", 6050)                         \
  X(cuMemHostUnregister, "cuMemHostUnregister", 4000)                        \
  X(cuMemHostGetDevicePointer_v2, "cuMemHostGetDevicePointer", 3020)         \
  X(cuMemcpyHtoDAsync_v2, "cuMemcpyHtoDAsync", 3020)                         \
  X(cuMemcpyDtoHAsync_v2, "cuMemcpyDtoHAsync", 3020)                         \
  X(cuMemcpyDtoDAsync_v2, "cuMemcpyDtoDAsync", 3020)                         \
  X(cuStreamCreate, "cuStreamCreate", 2000)                                  \
  X(cuStreamQuery, "cuStreamQuery", 2000)                                    \
  X(cuStreamSynchronize, "cuStreamSynchronize", 2000)                        \
  X(cuStreamDestroy_v2, "cuStreamDestroy", 4000)                             \
  X(cuEventCreate, "cuEventCreate", 2000)                                    \
  X(cuEventRecord, "cuEventRecord", 2000)                                    \
  X(cuEventQuery, "cuEventQuery", 2000)                                      \
  X(cuEventSynchronize, "cuEventSynchronize", 2000)                          \
  X(cuEventDestroy_v2, "cuEventDestroy", 4000)

enum class Function : std::size_t {
#define X(name, base, since) name,
  WCACHE_FAKE_CUDA_FUNCTIONS(X)
#undef X
};

/// The exported names, in the order of Function.
inline constexpr std::string_view kFunctionNames[] = {
#define X(name, base, since) #name,
    WCACHE_FAKE_CUDA_FUNCTIONS(X)
#undef X
};
inline constexpr std::size_t kFunctions = std::size(kFunctionNames);

}  // namespace wcache::fake_cuda

#pragma once

#include <cuda.h>

#include <memory>
#include <string>
#include <string_view>

#include "core/result.h"
#include "daemon/memory/cuda/load.h"

namespace wcache {

// The functions that wcache calls, by the names of <cuda.h>: its macros turn some into versioned symbols
// (cuMemAlloc is cuMemAlloc_v2), and the name that is looked up is what they turn into. All are in every
// driver since 11.4 (kOldestCudaDriver).
#define WCACHE_CUDA_FUNCTIONS(X)    \
  X(cuInit)                         \
  X(cuDriverGetVersion)             \
  X(cuGetErrorName)                 \
  X(cuGetErrorString)               \
  X(cuDeviceGetCount)               \
  X(cuDeviceGet)                    \
  X(cuDeviceGetUuid)                \
  X(cuDeviceGetName)                \
  X(cuDeviceTotalMem)               \
  X(cuDeviceGetAttribute)           \
  X(cuDevicePrimaryCtxRetain)       \
  X(cuDevicePrimaryCtxRelease)      \
  X(cuCtxPushCurrent)               \
  X(cuCtxPopCurrent)                \
  X(cuCtxSynchronize)               \
  X(cuMemGetInfo)                   \
  X(cuMemAlloc)                     \
  X(cuMemFree)                      \
  X(cuMemGetAddressRange)           \
  X(cuIpcGetMemHandle)              \
  X(cuIpcOpenMemHandle)             \
  X(cuIpcCloseMemHandle)            \
  X(cuMemGetAllocationGranularity)  \
  X(cuMemCreate)                    \
  X(cuMemRelease)                   \
  X(cuMemExportToShareableHandle)   \
  X(cuMemImportFromShareableHandle) \
  X(cuMemAddressReserve)            \
  X(cuMemAddressFree)               \
  X(cuMemMap)                       \
  X(cuMemSetAccess)                 \
  X(cuMemUnmap)                     \
  X(cuMemHostRegister)              \
  X(cuMemHostUnregister)            \
  X(cuMemcpyHtoDAsync)              \
  X(cuMemcpyDtoHAsync)              \
  X(cuStreamCreate)                 \
  X(cuStreamQuery)                  \
  X(cuStreamSynchronize)            \
  X(cuStreamDestroy)                \
  X(cuEventCreate)                  \
  X(cuEventRecord)                  \
  X(cuEventQuery)                   \
  X(cuEventDestroy)

/// As cuDriverGetVersion counts: 1000 * major + 10 * minor.
inline constexpr int kOldestCudaDriver = 11040;

/// The CUDA driver as a table of functions. It is loaded at run time, so one program runs with and without a
/// GPU, and is passed to whoever needs it, so that a test can put another one in its place. Members may be
/// called from any thread; a member's meaning, and its errors, are the driver's own.
struct CudaDriver {
#define WCACHE_CUDA_MEMBER(name) decltype(&::name) name = nullptr;
  WCACHE_CUDA_FUNCTIONS(WCACHE_CUDA_MEMBER)
#undef WCACHE_CUDA_MEMBER

  /// The parent's where the device is a MIG instance, of which cuDeviceGetUuid gives its own.
  decltype(&::cuDeviceGetUuid) parent_uuid = nullptr;

  std::shared_ptr<void> library;  ///< keeps the functions where they are
};

/// What a call came back with, as an error: "<what>: CUDA_ERROR_OUT_OF_MEMORY, out of memory". over_budget
/// for out of memory, denied for not permitted, unsupported for what the device or the driver cannot do
/// (exclusive-process mode, no such device), io for everything else.
Error cuda_error(const CudaDriver& driver, std::string_view what, CUresult result);

/// `cuda_error` of a call that failed; nothing of one that did not. `out_of_memory`: the hint for a call that
/// is told so of other memory than the device's.
Status cuda_check(const CudaDriver& driver, std::string_view what, CUresult result,
                  std::string_view out_of_memory = {});

}  // namespace wcache

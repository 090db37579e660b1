// Names and texts of error codes, and where functions are by their base names.
#include "tests/fake_cuda/errors.h"

#include <cstring>
#include <string_view>

#include "tests/fake_cuda/functions.h"

namespace wcache::fake_cuda {

namespace {

struct ErrorText {
  int code;
  const char* name;
  const char* text;
};

constexpr ErrorText kErrors[] = {
    {0, "CUDA_SUCCESS", "no error"},
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {4, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    {34, "CUDA_ERROR_STUB_LIBRARY", "CUDA driver is a stub library"},
    {36, "CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER", "API call is not supported in the installed CUDA driver"},
    {46, "CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA-capable device(s) is/are busy or unavailable"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {205, "CUDA_ERROR_MAP_FAILED", "mapping of buffer object failed"},
    {208, "CUDA_ERROR_ALREADY_MAPPED", "resource already mapped"},
    {214, "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error encountered"},
    {217, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "peer access is not supported between these two devices"},
    {304, "CUDA_ERROR_OPERATING_SYSTEM", "OS call failed or operation not supported on this OS"},
    {400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {600, "CUDA_ERROR_NOT_READY", "device not ready"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {704, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "peer access is already enabled"},
    {709, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {711, "CUDA_ERROR_TOO_MANY_PEERS", "peer mapping resources exhausted"},
    {712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
     "part or all of the requested memory range is already mapped"},
    {713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
     "pointer does not correspond to a registered memory region"},
    {800, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
     "system has unsupported display driver / cuda driver combination"},
    {999, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

CUresult error_part(CUresult error, const char** out, const char* ErrorText::*part) {
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  *out = nullptr;
  for (const ErrorText& known : kErrors) {
    if (known.code == static_cast<int>(error)) *out = known.*part;
  }
  return *out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

struct Export {
  std::string_view base;
  int since;
  void* address;
};

#define X(name, base, since) {base, since, reinterpret_cast<void*>(&::name)},
const Export kExports[] = {WCACHE_FAKE_CUDA_FUNCTIONS(X)};
#undef X

}  // namespace

CUresult error_name(CUresult error, const char** out) {
  return error_part(error, out, &ErrorText::name);
}
CUresult error_text(CUresult error, const char** out) {
  return error_part(error, out, &ErrorText::text);
}

CUresult proc_address(const char* symbol, void** out, int cuda_version, int driver_version, cuuint64_t flags,
                      CUdriverProcAddressQueryResult* status) {
  constexpr cuuint64_t kKnown =
      CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
  if (!symbol || !out || cuda_version > driver_version || (flags & ~kKnown) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  *out = nullptr;
  int best = 0;
  CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  for (const Export& known : kExports) {
    if (known.base != symbol) continue;
    if (found != CU_GET_PROC_ADDRESS_SUCCESS) found = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
    if (known.since > cuda_version || known.since < best) continue;
    best = known.since;
    *out = known.address;
    found = CU_GET_PROC_ADDRESS_SUCCESS;
  }
  if (status) *status = found;
  return CUDA_SUCCESS;
}

}  // namespace wcache::fake_cuda

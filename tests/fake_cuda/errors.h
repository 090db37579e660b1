#pragma once

#include <cuda.h>

namespace wcache::fake_cuda {

/// Null and 1 for a code that the facts do not list.
CUresult error_name(CUresult error, const char** out);
CUresult error_text(CUresult error, const char** out);

/// The version of `symbol` (a base name) that `cuda_version` asks for; null, with the reason in `status`,
/// when none.
CUresult proc_address(const char* symbol, void** out, int cuda_version, int driver_version, cuuint64_t flags,
                      CUdriverProcAddressQueryResult* status);

}  // namespace wcache::fake_cuda

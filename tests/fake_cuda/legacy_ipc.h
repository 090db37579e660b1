#pragma once

#include <cuda.h>

namespace wcache::fake_cuda {

struct State;

// Legacy IPC: a handle names an allocation of cuMemAlloc, which stays its exporter's. Once the exporter frees
// it or dies, the importers' pointers are broken (Physical::is_broken).

CUresult get_ipc_handle(State& state, CUipcMemHandle* handle, CUdeviceptr address);
CUresult open_ipc_handle(State& state, CUdevice device, CUdeviceptr* address, const CUipcMemHandle& handle,
                         unsigned flags);
CUresult close_ipc_handle(State& state, CUdeviceptr address);

}  // namespace wcache::fake_cuda

#pragma once

#include <cuda.h>

#include <cstddef>

namespace wcache::fake_cuda {

struct State;

// Virtual memory management. None of it needs a context. What is made here lives until the last handle,
// mapping and descriptor of it in any process is gone.

CUresult granularity(State& state, std::size_t* bytes, const CUmemAllocationProp* properties,
                     CUmemAllocationGranularity_flags option);
CUresult create(State& state, CUmemGenericAllocationHandle* handle, std::size_t size,
                const CUmemAllocationProp* properties, unsigned long long flags);
CUresult release(State& state, CUmemGenericAllocationHandle handle);
CUresult export_handle(State& state, void* out, CUmemGenericAllocationHandle handle,
                       CUmemAllocationHandleType type, unsigned long long flags);
CUresult import_handle(State& state, CUmemGenericAllocationHandle* handle, void* os_handle,
                       CUmemAllocationHandleType type);

CUresult reserve(State& state, CUdeviceptr* address, std::size_t size, std::size_t alignment,
                 CUdeviceptr hint, unsigned long long flags);
CUresult free_reservation(State& state, CUdeviceptr address, std::size_t size);
CUresult map(State& state, CUdeviceptr address, std::size_t size, std::size_t offset,
             CUmemGenericAllocationHandle handle, unsigned long long flags);
CUresult set_access(State& state, CUdeviceptr address, std::size_t size, const CUmemAccessDesc* descriptions,
                    std::size_t count);
CUresult unmap(State& state, CUdeviceptr address, std::size_t size);

}  // namespace wcache::fake_cuda

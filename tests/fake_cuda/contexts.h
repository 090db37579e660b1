#pragma once

#include <cuda.h>

#include <map>
#include <mutex>

#include "tests/fake_cuda/own_fd.h"

namespace wcache::fake_cuda {

struct State;

/// The primary contexts that this process has, by ordinal.
struct Contexts {
  struct Primary {
    unsigned retained = 0;
    OwnFd alive;  ///< what makes the context live in the shared directory
  };
  std::map<CUdevice, Primary> live;
};

CUresult retain_context(State& state, CUcontext* context, CUdevice device);
/// With the last reference go the streams, events, cuMemAlloc memory, opened IPC handles and host memory of
/// the context.
CUresult release_context(State& state, std::unique_lock<std::mutex>& lock, CUdevice device);

CUresult set_current(State& state, CUcontext context);
CUresult push_current(State& state, CUcontext context);
CUresult pop_current(CUcontext* context);
CUresult get_current(CUcontext* context);

/// The device of the calling thread's context: 201 without one, 709 when it is gone, the sticky error when
/// broken.
CUresult current_device(const State& state, CUdevice& device);

}  // namespace wcache::fake_cuda

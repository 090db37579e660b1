#pragma once

#include <cuda.h>

#include <mutex>

#include "tests/fake_cuda/streams.h"

namespace wcache::fake_cuda {

struct State;

/// Puts the copy into the stream. With registered host memory it is done later, with other host memory before
/// this returns; what cannot be is refused here.
CUresult ask_copy(State& state, std::unique_lock<std::mutex>& lock, CUdevice context, Copy copy,
                  CUstream stream);

/// Waits while copies are held and as the configuration says, then copies; the lock is let go of meanwhile.
/// 700 breaks the context.
CUresult do_copy(State& state, std::unique_lock<std::mutex>& lock, const Copy& copy, CUdevice context);

}  // namespace wcache::fake_cuda

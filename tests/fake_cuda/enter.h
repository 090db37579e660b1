#pragma once

#include <new>

#include "tests/fake_cuda/functions.h"
#include "tests/fake_cuda/state.h"

namespace wcache::fake_cuda {

/// What a driver call needs before it looks at its arguments.
enum class Needs {
  nothing,
  initialised,  ///< else 3
  context,      ///< current to the thread, else 201; not broken, else 700
};

struct Call {
  State& state;
  Lock& lock;
  CUdevice device;  ///< of the current context, for Needs::context
};

/// Counts the call and says why it may not go on: an injected failure, or what it needs and lacks.
CUresult begin(Function function, Needs needs, CUdevice& device);

/// In a process that was forked from one that had initialised the driver.
bool is_forked();

/// The one way into the driver: every exported function is a call of this. Takes the lock, lets no exception
/// out.
template <class Body>
CUresult enter(Function function, Needs needs, Body body) noexcept {
  if (is_forked()) return CUDA_ERROR_NOT_INITIALIZED;
  try {
    Lock lock(driver().mutex);
    CUdevice device = 0;
    const CUresult result = begin(function, needs, device);
    if (result != CUDA_SUCCESS) return result;
    const std::shared_ptr<State> state = driver().state;  // the call may wait, and the driver be restarted
    return body(Call{*state, lock, device});
  } catch (const std::bad_alloc&) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  } catch (...) {
    return CUDA_ERROR_UNKNOWN;
  }
}

/// cuInit.
CUresult initialise(State& state, unsigned flags);

}  // namespace wcache::fake_cuda

#include "tests/fake_cuda/contexts.h"

#include <cstdint>
#include <optional>
#include <vector>

#include "tests/fake_cuda/state.h"

namespace wcache::fake_cuda {

namespace {

thread_local std::vector<CUcontext> current_stack;

/// A primary context's handle stays the same when it is destroyed and made again; those of a restarted driver
/// are not those of before.
std::uintptr_t first_handle(const State& state) {
  return 0xc0de00000000 + (state.generation << 8);
}

CUcontext handle_of(const State& state, CUdevice device) {
  return reinterpret_cast<CUcontext>(first_handle(state) + static_cast<std::uintptr_t>(device + 1));
}

std::optional<CUdevice> device_of(const State& state, CUcontext context) {
  const std::uintptr_t number = reinterpret_cast<std::uintptr_t>(context) - first_handle(state);
  if (number == 0 || number > static_cast<std::uintptr_t>(state.devices.count())) return std::nullopt;
  return static_cast<CUdevice>(number - 1);
}

CUresult make_context(State& state, CUdevice device, Contexts::Primary& primary) {
  const int place = state.devices.place(device);
  const OwnFd lock = state.directory.lock();
  const int mode = state.devices.attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE);
  if (mode == CU_COMPUTEMODE_PROHIBITED) return CUDA_ERROR_DEVICE_UNAVAILABLE;
  if (mode == CU_COMPUTEMODE_EXCLUSIVE_PROCESS) {
    for (const SharedDirectory::Context& other : state.directory.contexts()) {
      if (other.device == place) return CUDA_ERROR_DEVICE_UNAVAILABLE;
    }
  }
  if (free_bytes(state, device) < state.config.context_bytes) return CUDA_ERROR_OUT_OF_MEMORY;
  primary.alive = state.directory.create_context(place);
  if (!primary.alive) return CUDA_ERROR_OPERATING_SYSTEM;
  state.counters.context_made(place);
  return CUDA_SUCCESS;
}

}  // namespace

CUresult retain_context(State& state, CUcontext* context, CUdevice device) {
  if (!context) return CUDA_ERROR_INVALID_VALUE;
  if (!state.devices.has(device)) return CUDA_ERROR_INVALID_DEVICE;
  if (!state.contexts.live.contains(device)) {
    Contexts::Primary primary;
    if (const CUresult result = make_context(state, device, primary); result != CUDA_SUCCESS) return result;
    state.contexts.live[device] = std::move(primary);
  }
  ++state.contexts.live[device].retained;
  state.counters.add(Counter::contexts, 1);
  *context = handle_of(state, device);
  return CUDA_SUCCESS;
}

CUresult release_context(State& state, std::unique_lock<std::mutex>& lock, CUdevice device) {
  if (!state.devices.has(device)) return CUDA_ERROR_INVALID_DEVICE;
  auto found = state.contexts.live.find(device);
  if (found != state.contexts.live.end() && found->second.retained == 1) {
    wait_for_streams(state, lock);
    found = state.contexts.live.find(device);  // another thread may have been here meanwhile
  }
  if (found == state.contexts.live.end()) return CUDA_ERROR_INVALID_CONTEXT;
  state.counters.add(Counter::contexts, -1);
  if (--found->second.retained > 0) return CUDA_SUCCESS;
  destroy_streams_of(state, device);
  free_memory_of(state, device);
  release_host_memory_of(state, device);
  const OwnFd directory_lock = state.directory.lock();
  state.directory.remove_context(state.devices.place(device));
  state.contexts.live.erase(device);
  return CUDA_SUCCESS;
}

CUresult set_current(State& state, CUcontext context) {
  if (context && !device_of(state, context)) return CUDA_ERROR_INVALID_CONTEXT;
  if (!current_stack.empty()) current_stack.pop_back();
  if (context) current_stack.push_back(context);
  return CUDA_SUCCESS;
}

CUresult push_current(State& state, CUcontext context) {
  if (!context || !device_of(state, context)) return CUDA_ERROR_INVALID_CONTEXT;
  current_stack.push_back(context);
  return CUDA_SUCCESS;
}

CUresult pop_current(CUcontext* context) {
  if (current_stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (context) *context = current_stack.back();
  current_stack.pop_back();
  return CUDA_SUCCESS;
}

CUresult get_current(CUcontext* context) {
  if (!context) return CUDA_ERROR_INVALID_VALUE;
  *context = current_stack.empty() ? nullptr : current_stack.back();
  return CUDA_SUCCESS;
}

CUresult current_device(const State& state, CUdevice& device) {
  const std::optional<CUdevice> current =
      current_stack.empty() ? std::nullopt : device_of(state, current_stack.back());
  if (!current) return CUDA_ERROR_INVALID_CONTEXT;
  if (!state.contexts.live.contains(*current)) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  device = *current;
  return state.sticky;
}

}  // namespace wcache::fake_cuda

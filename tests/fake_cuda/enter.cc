#include "tests/fake_cuda/enter.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>

#include "tests/fake_cuda/control.h"

namespace wcache::fake_cuda {

namespace {

std::atomic<pid_t> initialised_in = 0;

State& current_state() {
  std::shared_ptr<State>& state = driver().state;
  if (!state || state->pid != getpid()) state = std::make_shared<State>(std::getenv("WCACHE_FAKE_CUDA_DIR"));
  return *state;
}

/// As the end of the process does.
void drop_everything(State& state) {
  for (CUdevice device = 0; device < state.devices.count(); ++device) {
    destroy_streams_of(state, device);
    free_memory_of(state, device);
    release_host_memory_of(state, device);
    if (state.contexts.live.contains(device)) state.directory.remove_context(state.devices.place(device));
  }
  state.contexts.live.clear();
  state.addresses.regions.clear();
  state.handles.clear();
}

}  // namespace

bool is_forked() {
  const pid_t pid = initialised_in.load();
  return pid != 0 && pid != getpid();
}

CUresult begin(Function function, Needs needs, CUdevice& device) {
  State& state = current_state();
  state.counters.count_call(function);
  const std::optional<CUresult> injected =
      state.failures.of(function, state.counters.calls(function), state.counters.all_calls());
  if (injected) return *injected;
  if (needs == Needs::nothing) return CUDA_SUCCESS;
  if (state.config.init_error == CUDA_ERROR_STUB_LIBRARY) return CUDA_ERROR_STUB_LIBRARY;
  if (!state.initialised) return CUDA_ERROR_NOT_INITIALIZED;
  return needs == Needs::context ? current_device(state, device) : CUDA_SUCCESS;
}

CUresult initialise(State& state, unsigned flags) {
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (!state.problem.empty()) {
    state.directory.note_error(state.problem);
    return CUDA_ERROR_UNKNOWN;
  }
  if (state.config.init_error != 0) return static_cast<CUresult>(state.config.init_error);
  if (state.initialised) return CUDA_SUCCESS;
  state.devices = Devices(state.config, std::getenv("CUDA_VISIBLE_DEVICES"));
  if (state.devices.count() == 0) return CUDA_ERROR_NO_DEVICE;
  state.initialised = true;
  initialised_in = state.pid;
  return CUDA_SUCCESS;
}

extern "C" {

int wcache_fake_cuda_fail(const char* failures) {
  const std::optional<Failures> parsed = Failures::parse(failures ? failures : "");
  if (!parsed) return 1;
  Lock lock(driver().mutex);
  current_state().failures = *parsed;
  return 0;
}

unsigned long long wcache_fake_cuda_calls(const char* function) {
  const std::string_view name = function ? function : "";
  Lock lock(driver().mutex);
  const Counters& counters = current_state().counters;
  if (name == "any") return counters.all_calls();
  const std::optional<Function> found = function_named(name);
  return found ? counters.calls(*found) : ~0ull;
}

void wcache_fake_cuda_reset(void) {
  Lock lock(driver().mutex);
  State& state = current_state();
  state.failures = {};
  state.counters.forget_calls();
  state.break_context(CUDA_SUCCESS);
}

void wcache_fake_cuda_restart(void) {
  Lock lock(driver().mutex);
  const std::shared_ptr<State> state = driver().state;
  if (!state) return;
  wait_until_idle(*state, lock);
  if (driver().state != state) return;  // another thread's restart was first
  drop_everything(*state);
  driver().state = nullptr;
  initialised_in = 0;
}

}  // extern "C"

}  // namespace wcache::fake_cuda

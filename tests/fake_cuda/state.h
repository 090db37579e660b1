#pragma once

#include <cuda.h>
#include <sys/types.h>

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "tests/fake_cuda/config.h"
#include "tests/fake_cuda/contexts.h"
#include "tests/fake_cuda/counters.h"
#include "tests/fake_cuda/devices.h"
#include "tests/fake_cuda/failures.h"
#include "tests/fake_cuda/host_memory.h"
#include "tests/fake_cuda/memory.h"
#include "tests/fake_cuda/shared_directory.h"
#include "tests/fake_cuda/streams.h"

namespace wcache::fake_cuda {

/// Everything the driver knows in one process. Guarded by Driver::mutex. Calls and the threads of streams
/// share it: a restart takes it from none that waits.
struct State : std::enable_shared_from_this<State> {
  explicit State(const char* directory_path);

  const pid_t pid;
  const std::uint64_t generation;  ///< how many there were in this process before
  SharedDirectory directory;
  Counters counters;
  Failures failures;
  std::string problem;  ///< why cuInit gives 999; empty when nothing is wrong with directory, configuration
                        ///< and failures

  bool initialised = false;
  CUresult sticky = CUDA_SUCCESS;  ///< what every call that needs a context gives from now on
  Config config;
  Devices devices;

  Contexts contexts;
  AddressSpace addresses;
  std::map<CUmemGenericAllocationHandle, std::shared_ptr<Physical>> handles;
  HostMemory host;
  Streams streams;

  /// A number for a handle that no other handle of this process ever has.
  std::uint64_t next_handle() { return handles_made_ += 16; }

  /// The context is broken for good.
  void break_context(CUresult error) {
    sticky = error;
    counters.set(Counter::sticky_error, static_cast<std::uint64_t>(error));
  }

 private:
  std::uint64_t handles_made_ = 0xfa4e0000;
};

/// The process's one driver: made at the first call, never destroyed (a stream's thread may outlive main).
struct Driver {
  std::mutex mutex;
  std::condition_variable changed;  ///< an operation ended or came, or a stream was closed
  std::shared_ptr<State> state;
};
Driver& driver();

using Lock = std::unique_lock<std::mutex>;

}  // namespace wcache::fake_cuda

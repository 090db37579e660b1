#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tests/fake_cuda/own_fd.h"

namespace wcache::testing {

/// One device of a fake machine. What is empty is left to the fake (tests/fake_cuda/config.h).
struct FakeDevice {
  std::string uuid;  ///< 8-4-4-4-12 hex digits
  std::string name;
  std::string mig_parent;  ///< the GPU's UUID: this is a MIG instance
  std::string pci;
  std::uint64_t memory = 1ull << 30;
  std::map<int, int> attributes;
};

/// A fake machine (tests/fake_cuda/config.h says what each means).
struct FakeMachine {
  std::vector<FakeDevice> devices = std::vector<FakeDevice>(1);
  std::map<int, int> attributes;  ///< of every device
  int driver_version = 13000;
  int init_error = 0;
  std::uint64_t granularity = 2ull << 20;
  std::uint64_t copy_delay_us = 0;
  bool read_only_access = true;
  bool peer_access = false;
  std::uint64_t context_bytes = 0;
};

/// The fake driver's side of a test: the machine's directory, gone at the end, and what is in it. Processes
/// of this machine are those that run with environment(), and this one once enter_here() was called.
class FakeGpu {
 public:
  explicit FakeGpu(const FakeMachine& machine = {});
  FakeGpu(const FakeGpu&) = delete;
  FakeGpu& operator=(const FakeGpu&) = delete;
  ~FakeGpu();

  /// Another configuration, for processes whose first driver call is yet to come.
  void configure(const FakeMachine& machine);

  const std::filesystem::path& directory() const { return directory_; }
  /// libwcache_fake_cuda.so
  static std::string library();
  /// The UUID that device has when the configuration gives none.
  static std::string default_uuid(int device);

  /// WCACHE_LIBCUDA, WCACHE_FAKE_CUDA_DIR and, where failures are asked for (tests/fake_cuda/failures.h),
  /// WCACHE_FAKE_CUDA_FAIL, as "K=V".
  std::vector<std::string> environment(std::string_view failures = {}) const;
  /// Puts that into this process's environment until the end, and restarts the fake driver if it is loaded
  /// here.
  void enter_here(std::string_view failures = {});

  /// Copies with registered host memory, and those on the device, wait in their streams from now on, in every
  /// process, until let_copies_go(): what a program does before its copies are done is then no matter of
  /// time. Whoever waits for such a copy hangs.
  void hold_copies();
  void let_copies_go();

  struct Context {
    int device;
    pid_t pid;
    bool operator==(const Context&) const = default;
  };
  /// Those that live now, in whatever process.
  std::vector<Context> contexts() const;
  /// Device memory in use, all processes together, without what contexts take.
  std::uint64_t used_bytes(int device) const;
  std::size_t live_allocations(int device) const;
  /// Takes device memory, as another process might, until the descriptor is closed.
  fake_cuda::OwnFd occupy(int device, std::uint64_t bytes) const;

  /// Counters of a process that lives or has ended (names: tests/fake_cuda/counters.h); empty, or none, where
  /// the process made no driver call.
  std::map<std::string, std::uint64_t> counters(pid_t pid) const;
  std::optional<std::uint64_t> counter(pid_t pid, const std::string& name) const;
  /// "live.handles=2" and so on: what that process has and has not given back. Without its contexts when
  /// `with_contexts` is false.
  std::vector<std::string> leaks(pid_t pid, bool with_contexts = true) const;
  /// What was wrong with the configuration or the failures; empty when nothing was.
  std::string errors() const;

 private:
  std::filesystem::path directory_;
  std::map<std::string, std::optional<std::string>> environment_before_;
};

/// The control functions (tests/fake_cuda/control.h) of the fake driver in this process, which this loads as
/// the code under test does.
class FakeDriver {
 public:
  FakeDriver();

  /// Throws std::invalid_argument when `failures` is not understood.
  void fail(const std::string& failures) const;
  std::uint64_t calls(const std::string& function) const;
  void reset() const { reset_(); }
  void restart() const { restart_(); }
  void* handle() const { return handle_; }

 private:
  void* handle_;  ///< of dlopen; stays
  int (*fail_)(const char*);
  unsigned long long (*calls_)(const char*);
  void (*reset_)();
  void (*restart_)();
};

/// A hold on a device's primary context in this process, which makes it where there is none. Whoever looks
/// for what is not given back has one: the last hold that goes takes streams, events, registered ranges,
/// cuMemAlloc's memory and opened handles with it, so that none of them would be missed. Goes whatever failure
/// is left to come, which it clears.
class HeldContext {
 public:
  explicit HeldContext(const FakeDriver& driver, int device = 0);
  HeldContext(const HeldContext&) = delete;
  HeldContext& operator=(const HeldContext&) = delete;
  ~HeldContext();

  /// What FakeGpu::leaks says of this hold.
  static constexpr const char* kLeak = "live.contexts=1";

 private:
  const FakeDriver driver_;
  const int device_;
};

}  // namespace wcache::testing

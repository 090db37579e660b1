#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tests/fake_cuda/own_fd.h"

namespace wcache::fake_cuda {

/// What the processes of one fake machine share: a directory of
///
///   config                         read by each process at its first driver call (config.h)
///   hold                           while it is there, no copy with registered memory is done
///   lock                           flocked while memory or contexts are made and counted
///   memory/d<device>-<kind>-<pid>-<n>   one allocation's bytes; kind is vmm or legacy, pid its maker's
///   contexts/d<device>-<pid>       one process's primary context
///   process/<pid>                  one process's counters (counters.h)
///   errors                         why a cuInit gave 999, a line each
///
/// <device> is the device's place in the configuration. A file in memory/ or contexts/ is alive while an OFD
/// lock is on it, and that lock belongs to its maker's open file description: it goes with the last
/// descriptor of that, in whatever process, killed or not. Dead files are removed by whoever comes across
/// them.
class SharedDirectory {
 public:
  enum class Kind { vmm, legacy };
  struct Usage {
    std::uint64_t allocations = 0;
    std::uint64_t bytes = 0;
  };
  struct Context {
    int device;
    pid_t pid;
  };
  struct MemoryName {
    int device;
    Kind kind;
    pid_t pid;
  };

  explicit SharedDirectory(std::filesystem::path path) : path_(std::move(path)) {}

  /// Makes what is missing of it; false when it cannot be.
  bool prepare() const;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path memory_path(const std::string& name) const { return path_ / "memory" / name; }

  /// Held until the descriptor is closed. What follows wants it held, so that two processes count one after
  /// the other.
  OwnFd lock() const;

  Usage usage(int device) const;
  std::vector<Context> contexts() const;

  /// A new allocation of `bytes` zeroes; empty when the file system refuses.
  OwnFd create_memory(int device, Kind kind, std::uint64_t bytes, std::string& name) const;
  OwnFd create_context(int device) const;
  void remove_context(int device) const;

  bool holds_copies() const;

  void note_error(std::string_view line) const;

  static std::optional<MemoryName> parse_memory_name(std::string_view name);

 private:
  std::filesystem::path path_;
};

/// Whether the maker's open file description of the file behind `fd` is still there. `fd` must be of another
/// one.
bool is_held(int fd);

}  // namespace wcache::fake_cuda

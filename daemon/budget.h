#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/result.h"

namespace wcache {

/// Something that bounds how much more memory this process can take.
struct MemoryLimit {
  std::string name;             ///< for people: "the cgroup limit /sys/fs/cgroup/a/memory.max"
  std::uint64_t total = 0;      ///< what is allowed or there at all, bytes
  std::uint64_t available = 0;  ///< what is left of it; page cache that the kernel can drop counts as left
  std::string hint;             ///< how to have more
  std::string key = {};         ///< the option behind it, if it is one
};

/// MemAvailable, and the limit of this process's memory cgroup and of each of its ancestors that can be seen,
/// of cgroup v1 and v2 alike (memory.high counts as a limit: memory that cannot be reclaimed stalls there).
/// What cannot be read is left out. `root` is where /proc and the cgroup file systems are.
std::vector<MemoryLimit> machine_memory_limits(const std::filesystem::path& root = "/");

/// Whether `needed` bytes (arena_nbytes()) fit every limit and, where given, the user's `memory_limit`.
/// Reason::over_budget names the tightest limit, its size, what is needed, and what to do.
Status check_budget(std::uint64_t needed, std::optional<std::uint64_t> memory_limit,
                    const std::vector<MemoryLimit>& machine);

}  // namespace wcache

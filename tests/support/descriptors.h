#pragma once

#include <unistd.h>

#include <cstddef>
#include <filesystem>
#include <string>

namespace wcache::test {

/// How many descriptors a process has, of this process one of the call's own among them.
inline std::size_t open_descriptors(pid_t pid = getpid()) {
  const std::filesystem::directory_iterator rows("/proc/" + std::to_string(pid) + "/fd");
  return static_cast<std::size_t>(std::distance(begin(rows), end(rows)));
}

}  // namespace wcache::test

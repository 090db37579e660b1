#pragma once

#include <sys/types.h>

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/result.h"
#include "ipc/protocol.h"

namespace wcache {

/// What makes a mapping one of an entry's.
struct MappingSearch {
  /// (st_dev, st_ino) of the images: how a mapping of their memory shows, also through the mount's
  /// passthrough.
  std::set<std::pair<std::uint64_t, std::uint64_t>> images;
  /// "/<role>/<fingerprint>/": part of the path of a mapping made through the mount, whatever the mount's own
  /// device is.
  std::string path_part;
  std::set<pid_t> except;  ///< processes of ours, which hold nothing for themselves
};

struct MappingScan {
  std::vector<Holder> holders;  ///< sorted by pid; `since` is not known
  bool complete = true;         ///< false: some process's maps could not be read
};

/// Looks through <proc>/<pid>/maps of every process. `proc` is "/proc", or what a test puts in its place.
/// Takes milliseconds for each thousand mappings; any thread.
MappingScan scan_mappings(const std::string& proc, const MappingSearch& search);

/// What a process calls itself: its command line with spaces between the words, else its short name, else "".
std::string command_of(const std::string& proc, pid_t pid);

}  // namespace wcache

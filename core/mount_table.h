#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/result.h"

namespace wcache {

/// One line of /proc/PID/mountinfo.
struct MountEntry {
  int id = 0;
  int parent = 0;
  std::string device;   ///< "major:minor"
  std::string path;     ///< where it is mounted, octal escapes undone
  std::string options;  ///< of the mount, comma-separated
  std::string type;     ///< "fuse.wcachefs", "tmpfs"
  std::string source;
  std::string root;           ///< which directory of the file system is seen there, octal escapes undone
  std::string super_options;  ///< of the file system, comma-separated
};

/// In the kernel's order: a mount on top of another comes later. Lines that do not parse are left out.
std::vector<MountEntry> parse_mount_table(std::string_view mountinfo);

/// The mounts this process sees. Touches none of them, so a dead or hanging one does not matter.
Result<std::vector<MountEntry>> read_mount_table();

/// What is mounted exactly at `path` (absolute, no symbolic link, no trailing slash), the topmost; nullptr
/// for nothing.
const MountEntry* mount_at(const std::vector<MountEntry>& table, std::string_view path);

}  // namespace wcache

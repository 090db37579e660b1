#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/result.h"

namespace wcache {

/// What launchers know of the mount they made, kept in the run directory for whoever takes it over:
/// {"path": ..., "allow_other": ..., "created": [...]}. Written under the supervisor lock only.
struct MountRecord {
  std::string path;
  bool allow_other = false;
  std::vector<std::string> created;  ///< directories made for it, outermost first; to be removed with it
  bool operator==(const MountRecord&) const = default;
};

/// nullopt when there is none, or none that can be read: then no launcher made the mount.
std::optional<MountRecord> read_mount_record(const std::string& file);

/// Whole or not at all.
Status write_mount_record(const std::string& file, const MountRecord& record);

/// Makes `path` and what is missing above it, mode 0755. Says what it made, outermost first, also when it
/// failed.
Status make_directories(const std::string& path, std::vector<std::string>& created);

/// Removes those that are empty, innermost first.
void remove_directories(const std::vector<std::string>& created);

/// Absolute, symbolic links resolved as far as the path exists. Never asks the file system that may be
/// mounted there, which may be dead.
Result<std::string> resolve_mount_path(const std::string& path);

/// Whether a mount could be put at `path` (resolved): not below something that is no directory, not over
/// another file system's mount, not over a directory with files, and without a word that engines take for a
/// kind of draft. invalid, key "--mount".
Status check_mount_path(const std::string& path);

}  // namespace wcache

#pragma once

#include <spdlog/logger.h>

#include <string>
#include <string_view>

#include "core/fd.h"
#include "core/result.h"

namespace wcache {

inline constexpr std::string_view kMountType = "fuse.wcachefs";
inline constexpr std::string_view kMountSource = "wcache";

/// What lies at a mount point before we mount.
enum class MountPointState {
  free,     ///< an empty directory
  dead,     ///< a mount of ours whose server is gone
  ours,     ///< a mount of ours that is served
  foreign,  ///< something else is mounted there
};

/// An absolute path without symbolic links, also where a dead mount lies at the end. not_found, or invalid
/// for what is no directory.
Result<std::string> resolve_mount_point(const std::string& directory);

/// Looks at the mount table before it touches the path. invalid for a directory that is not empty.
Result<MountPointState> look_at_mount_point(const std::string& path);

/// One FUSE mount of ours, read-only, from mounting to taking it down. Move-only; destruction leaves the
/// mount alone.
class MountPoint {
 public:
  struct Options {
    bool allow_other = false;
  };

  /// Mounts at `path` (from resolve_mount_point), in place of a dead mount of ours where one lies there:
  /// beneath it first, so that the path is never empty, where the kernel can (Linux 6.5). Without
  /// CAP_SYS_ADMIN the system's fusermount3 mounts. busy: served by another wcachefs; invalid: foreign mount
  /// or not empty; denied.
  static Result<MountPoint> mount(const std::string& path, const Options& options, spdlog::logger& log);

  const std::string& path() const { return path_; }
  /// The /dev/fuse descriptor, for the session. Once.
  Fd take_device() { return std::move(device_); }

  /// "major:minor" of the mount, as in the mount table; empty when it is not there any more.
  std::string device_number() const { return number_; }

  /// Lets the kernel read ahead `kib` KiB. Best effort: only root may, and old kernels have no such setting.
  Status set_read_ahead(unsigned kib) const;

  enum class Unmounted { gone_already, clean, lazily };
  /// Takes the mount down: plainly, or lazily when it is busy. Only our own mount, whatever lies at the path
  /// now.
  Result<Unmounted> unmount();

 private:
  MountPoint(std::string path, Fd device, std::string number, bool helper)
      : path_(std::move(path)), device_(std::move(device)), number_(std::move(number)), by_helper_(helper) {}

  std::string path_;
  Fd device_;
  std::string number_;
  bool by_helper_ = false;
};

}  // namespace wcache

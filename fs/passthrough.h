#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <unordered_map>

#include "core/result.h"
#include "fs/open_mode.h"

struct fuse_conn_info;
struct fuse_file_info;

namespace wcache {

/// The kernel's registry of backing files of one FUSE connection; replaced in tests. Identifiers are
/// positive.
class BackingRegistry {
 public:
  virtual ~BackingRegistry() = default;
  virtual Result<int> add(int backing_fd) = 0;
  virtual void remove(int id) = 0;
};

/// The registry behind a /dev/fuse descriptor, which is borrowed. Needs Linux 6.9 and CAP_SYS_ADMIN.
class DeviceBackingRegistry : public BackingRegistry {
 public:
  explicit DeviceBackingRegistry(int fuse_fd) : fuse_fd_(fuse_fd) {}
  Result<int> add(int backing_fd) override;
  void remove(int id) override;

 private:
  int fuse_fd_;
};

/// Which inodes are served by passthrough: one backing id for each, registered at its first open and dropped
/// after its last release. Safe for concurrent use.
class Passthrough {
 public:
  /// Of init: asks the kernel for the capability. `conn` must be the one that init was given.
  static bool negotiate(fuse_conn_info& conn);

  /// Whether the kernel agreed to it. Call `try_out` afterwards.
  void offer(bool agreed);

  /// Registers `backing_fd` once and lets go of it: the capability is offered to the unprivileged as well and
  /// then refused. Until then, and when it fails, nothing is served by passthrough. `registry` is borrowed
  /// for good.
  void try_out(BackingRegistry& registry, int backing_fd);

  /// Rules passthrough out, for a reason of the user's.
  void refuse(std::string reason);

  bool available() const;
  /// Why not, in words for status and doctor; empty when available.
  std::string reason() const;

  /// One more open of `inode`. Gives its backing id, or 0 when it has to be served otherwise, as it then
  /// stays until its last release. Each acquire needs a release.
  int acquire(std::uint64_t inode, int backing_fd);
  void release(std::uint64_t inode);

  /// Inodes open by passthrough now.
  std::size_t registered() const;

  /// Makes the reply of an open a passthrough one. `id` is positive.
  static void set_backing(fuse_file_info& file, int id);

 private:
  struct Backing {
    int id = 0;
    std::uint64_t opens = 0;
  };
  mutable std::mutex mutex_;
  BackingRegistry* registry_ = nullptr;
  std::string reason_ = "the mount is not up yet";
  std::unordered_map<std::uint64_t, Backing> backings_;
};

}  // namespace wcache

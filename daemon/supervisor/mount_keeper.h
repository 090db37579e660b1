#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "core/result.h"
#include "daemon/supervisor/console.h"
#include "daemon/supervisor/mount_record.h"
#include "daemon/supervisor/mount_watcher.h"
#include "daemon/supervisor/plan.h"
#include "daemon/supervisor/process.h"
#include "ipc/run_dir.h"
#include "ipc/socket_lock.h"

namespace wcache {

/// Sees to it that one wcachefs runs for the run directory. Of all launchers the holder of "supervisor.lock"
/// starts it, watches it and starts it again when it dies, later and later; the others wait for the lock.
/// wcachefs itself belongs to nobody: it goes on when its launcher ends, and the next holder watches it. One
/// thread, driven by `tick`.
class MountKeeper {
 public:
  using Clock = std::chrono::steady_clock;

  /// Borrows all but the plan.
  MountKeeper(const RunDir& run_dir, MountPlan plan, const LaunchPlan& launch, Console& console);

  /// Does what is due. `seen` is the latest look at the mount.
  void tick(Clock::time_point now, const Sighting& seen);

  /// Why this launcher cannot have its mount; it is to end then. invalid (another path), or wcachefs's own
  /// reason.
  const std::optional<Error>& error() const { return error_; }

  /// Where the mount is, or will be.
  const std::string& path() const { return plan_.path; }

  /// Whether this launcher has started a wcachefs.
  bool started_it() const { return started_it_; }

  /// Readable when wcachefs ends; -1 while none is watched.
  int fd() const { return process_ ? process_->fd() : -1; }

  /// For the last launcher: ends wcachefs, and removes what launchers made for it. A mount no launcher made
  /// is left.
  void take_down();

 private:
  void follow(const Sighting& seen);
  bool same_path(const std::string& other);
  void supervise(Clock::time_point now, const Sighting& seen);
  void adopt(const MountStatus& mount);
  void start(Clock::time_point now);
  void died(Clock::time_point now, const ExitStatus& status);
  Status prepare_path();
  void unmount_dead() const;

  const RunDir& run_dir_;
  MountPlan plan_;
  const LaunchPlan& launch_;
  Console& console_;
  const std::string record_file_;

  std::optional<SocketLock> lock_;
  Clock::time_point try_lock_at_{};
  std::optional<MountRecord> record_;
  std::optional<Process> process_;
  bool started_it_ = false;
  bool was_up_ = false;   // the process that is watched has answered
  bool ever_up_ = false;  // some process has
  unsigned failures_ = 0;
  Clock::time_point start_at_{};
  std::optional<Error> error_;
};

}  // namespace wcache

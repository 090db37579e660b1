#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "core/fd.h"
#include "core/result.h"
#include "daemon/supervisor/console.h"
#include "daemon/supervisor/group.h"
#include "daemon/supervisor/launchers_lock.h"
#include "daemon/supervisor/mount_keeper.h"
#include "daemon/supervisor/mount_watcher.h"
#include "daemon/supervisor/plan.h"
#include "daemon/supervisor/status_socket.h"

namespace wcache {

/// The signals that end a launcher. `block` is the first act of main, before any thread: from then on they
/// wait for the descriptor that `open` gives. SIGPIPE is ignored.
class StopSignals {
 public:
  static void block();
  /// For a program that wants none of it after all.
  static void unblock();
  static Result<StopSignals> open();

  int fd() const { return fd_.get(); }
  /// The number of a signal that has come; 0 for none. Never blocks.
  int take() const;
  /// Whether one is waiting; it stays there.
  bool pending() const;

 private:
  explicit StopSignals(Fd fd) : fd_(std::move(fd)) {}
  Fd fd_;
};

/// What `wcache preload` does once its arguments are checked: starts the groups' daemons, keeps the mount,
/// says when each group is ready, and stays until it is told to stop or has nothing left to serve. One thread
/// and that of MountWatcher.
class Launcher {
 public:
  using Clock = std::chrono::steady_clock;

  /// Borrows console and signals.
  Launcher(LaunchPlan plan, Console& console, const StopSignals& signals);
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

  /// Runs to the end and leaves nothing behind. The exit code of the contract. An error: it could not begin;
  /// whatever had begun is undone.
  Result<int> run();

 private:
  struct Member {
    explicit Member(const GroupPlan& plan) : group(plan) {}

    Group group;
    std::optional<GroupPhase> said;  // the phase that the user was last told of
    unsigned starts = 0;
    std::optional<Clock::time_point> deadline;
    std::int32_t kept_by = 0;                        // phase lost: the wcachefs that still shows it
    std::optional<Clock::time_point> unknown_since;  // phase elsewhere, and nobody knows of it
  };

  Status begin();
  Status join_others();
  void start(Member& member);
  std::uint64_t memory_to_come(const Member& member) const;
  std::optional<int> turn();  // an exit code ends the loop
  void wait();
  void look_after(Member& member, const Sighting& seen);
  void look_after_elsewhere(Member& member, const Sighting& seen);
  void look_after_lost(Member& member, const Sighting& seen);
  void announce_ready(Member& member);
  void announce_evicted(Member& member);
  void announce_failed(Member& member);
  bool shown(const std::string& entry, const Sighting& seen) const;
  void update_watch();
  void update_pair();
  void show_progress();
  std::optional<int> verdict();
  StatusReply status() const;
  void stop();
  void stop_groups();
  void drop_orphans(const std::vector<std::string>& entries) const;
  void clear_run_dir();

  LaunchPlan plan_;
  Console& console_;
  const StopSignals& signals_;
  std::optional<LaunchersLock> here_;
  std::optional<StatusSocket> socket_;
  std::optional<MountWatcher> watcher_;
  std::optional<MountKeeper> keeper_;
  std::vector<Member> members_;
  std::optional<Error> first_error_;
  bool last_was_evicted_ = false;
  bool said_ready_ = false;
  bool leave_mount_ = false;  // it was here before, and others rely on it
};

/// "<role>/<fingerprint>"
std::string entry_of(const Group& group);

}  // namespace wcache

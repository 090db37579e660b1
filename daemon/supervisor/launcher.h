#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "core/result.h"
#include "daemon/supervisor/console.h"
#include "daemon/supervisor/group.h"
#include "daemon/supervisor/launchers_lock.h"
#include "daemon/supervisor/mount_keeper.h"
#include "daemon/supervisor/mount_watcher.h"
#include "daemon/supervisor/plan.h"
#include "daemon/supervisor/status_socket.h"
#include "daemon/supervisor/stop_signals.h"

namespace wcache {

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
    bool filled_elsewhere = false;                   // phase elsewhere: whoever fills it has the memory
    bool waits = false;                              // for an earlier group to take its memory
    std::optional<Clock::time_point> short_since;    // too little memory, and undecided
    std::optional<Clock::time_point> dropped;        // then: when what an orphan had was
    bool gets_free = false;                          // then: of what others had
    bool tried_beside = false;                       // then: was started once more beside one that serves
  };

  Status begin();
  Status join_others();
  void start(Member& member);
  std::uint64_t memory_to_come(const Member& member) const;
  static bool has_memory(const Member& member);
  bool must_wait(const Member& member) const;
  bool undecided(const Member& member) const;
  bool begins_again(Member& member, const Sighting& seen);
  std::string hint_of(const Member& member) const;
  static void add_hint(Member& member, const std::string& hint);
  bool drop_orphan_of(Member& member, const GroupStatus& orphan);
  std::optional<int> turn();  // an exit code ends the loop
  void wait();
  void look_after(Member& member, const Sighting& seen);
  void give_up(Member& member, Error error);
  void look_after_elsewhere(Member& member, const Sighting& seen);
  void look_after_lost(Member& member, const Sighting& seen);
  void announce_ready(Member& member);
  void announce_evicted(Member& member);
  void announce_failed(Member& member);
  bool shown(const Member& member, const Sighting& seen) const;
  void update_watch();
  void update_pair();
  void show_progress();
  std::optional<int> verdict();
  StatusReply status() const;
  void stop();
  void stop_groups();
  bool impatient() const;
  bool others_serve() const;
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
  std::optional<Clock::time_point> stopped_at_;  // by a signal
  bool leave_mount_ = false;                     // it was here before, and others rely on it
};

/// "<role>/<fingerprint>"
std::string entry_of(const Group& group);

}  // namespace wcache

#pragma once

#include <poll.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/result.h"
#include "daemon/supervisor/agreement.h"
#include "daemon/supervisor/plan.h"
#include "daemon/supervisor/process.h"
#include "ipc/connection.h"
#include "ipc/protocol.h"

namespace wcache {

/// Where a group stands, for its launcher.
enum class GroupPhase {
  pending,    ///< its daemons start or fill
  ready,      ///< every rank serves
  elsewhere,  ///< another launcher's daemons have its fingerprint
  evicted,    ///< dropped on request
  failed,     ///< `error` says why; nothing of it runs any more, or is about to end
  lost,       ///< was ready and a daemon died; what the mount holds of it may still be served
};

/// The daemons of one group, from their start to their end. One thread. The destructor kills what still runs.
class Group {
 public:
  explicit Group(GroupPlan plan);
  Group(Group&&) noexcept = default;
  Group& operator=(Group&&) = delete;
  ~Group();

  /// Starts one daemon a rank, and with several nodes their meeting. Not to be called while a daemon runs.
  Status start(const LaunchPlan& launch);

  /// Instead of `start`, for the moment: phase pending, and nothing of it runs.
  void postpone();

  /// Instead of `start`: phase elsewhere, until somebody looked whether the fingerprint known ahead is
  /// served.
  void presume_elsewhere() { phase_ = GroupPhase::elsewhere; }

  /// In phase elsewhere: this node's ranks are served, by others. True once every other node's are too.
  bool served_elsewhere();

  /// Before its daemons are told to end: the other nodes hear that this one leaves.
  void leave() { agreement_.reset(); }

  /// Whether the other nodes, if there are any, have been told that it failed.
  bool told_others() const { return !agreement_ || agreement_->over(); }

  /// What it waits for when its ranks are filled, in words for people; else empty.
  std::string waits_for() const { return agreement_ ? agreement_->waits_for() : ""; }

  /// Adds what poll(2) should watch for this group.
  void watch(std::vector<pollfd>& items) const;

  /// Takes in what the daemons have said and whether they have ended. Never blocks.
  void turn();

  /// Gives up on it: its daemons are told to end, the phase is failed with this error.
  void abandon(Error error);

  /// Instead of `start`: failed with this error, without a daemon. Other nodes, which wait for this one, are
  /// told.
  void refuse(const Error& error, const LaunchPlan& launch);

  /// The mount no longer shows what it held of a lost group: lost becomes evicted where somebody dropped it
  /// on request, else failed.
  void forget(bool on_request);

  /// SIGTERM, or what is given, to every daemon that runs.
  void signal(int number) const;
  bool running() const;  ///< whether a daemon has not ended

  GroupPhase phase() const { return phase_; }
  const GroupPlan& plan() const { return plan_; }
  /// Of phase failed and lost.
  const Error& error() const { return error_; }
  std::string fingerprint() const;  ///< empty while it is not known
  std::vector<RankStatus> records() const;
  /// Sockets of daemons that ended without removing them.
  std::vector<std::string> sockets() const;

 private:
  struct Rank {
    RankStatus record;
    std::optional<Process> process;
    std::optional<Connection> connection;
    bool ended = false;
  };

  RankStatus first_record(const RankPlan& rank) const;
  static std::vector<std::string> arguments_of(const GroupPlan& plan, const RankPlan& rank,
                                               const LaunchPlan& launch, int launcher_fd);
  Status start_rank(const LaunchPlan& launch, const RankPlan& plan, Rank& rank) const;
  void listen(Rank& rank);
  void take(Rank& rank, RankStatus status) const;
  void take_message(Rank& rank, Body body);
  void agree();
  void tell_all(const Body& body);
  void end(Rank& rank, const ExitStatus& status);
  void settle();

  GroupPlan plan_;
  std::vector<Rank> ranks_;
  std::unique_ptr<Agreement> agreement_;  // of a group of several ranks or nodes
  bool published_ = false;
  GroupPhase phase_ = GroupPhase::pending;
  Error error_;
};

/// Unix time in seconds, as statuses carry it.
double unix_time();

}  // namespace wcache

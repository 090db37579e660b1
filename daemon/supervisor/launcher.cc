#include "daemon/supervisor/launcher.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include "core/format.h"
#include "daemon/budget.h"
#include "daemon/supervisor/made_run_dir.h"
#include "daemon/supervisor/served.h"
#include "ipc/client.h"
#include "ipc/listener.h"
#include "ipc/socket_lock.h"

namespace wcache {
namespace {

constexpr std::chrono::seconds kWaitForLast{30};  // for a last launcher to clear up
constexpr std::chrono::seconds kGentleEnd{15};    // for daemons to end on SIGTERM
constexpr std::chrono::milliseconds kApart{250};
constexpr std::chrono::seconds kUnknownPatience{3};  // for a daemon elsewhere that nobody knows
constexpr std::chrono::seconds kDropOrphan{2};
constexpr std::chrono::seconds kLastWord{3};  // for the nodes' meeting to say itself who is late
constexpr unsigned kMostRetries = 3;
constexpr std::chrono::seconds kOneWish{1};  // signals that mean the same: timeout(1) sends two
constexpr int kTurnMs = 100;

bool settled(GroupPhase phase) {
  return phase == GroupPhase::failed || phase == GroupPhase::evicted;
}

}  // namespace

std::string entry_of(const Group& group) {
  return std::string(to_string(group.plan().role)) + "/" + group.fingerprint();
}

Launcher::Launcher(LaunchPlan plan, Console& console, const StopSignals& signals)
    : plan_(std::move(plan)), console_(console), signals_(signals) {}

Result<int> Launcher::run() {
  if (Status begun = begin(); !begun) {
    stop();
    return fail(begun.error());
  }
  std::optional<int> code;
  while (!(code = turn())) wait();
  stop();
  return *code;
}

/// Nothing is held yet when a signal came first; the first turn takes it.
Status Launcher::join_others() {
  for (unsigned attempt = 0;; ++attempt) {
    Result<LaunchersLock> here = LaunchersLock::share(
        plan_.run_dir.file("launchers.lock"), deadline_in(kWaitForLast), [&] { return signals_.pending(); });
    if (here) here_.emplace(std::move(*here));
    if (here || signals_.pending()) return {};
    if (here.error().reason != Reason::not_found || attempt == kMostRetries) return fail(here.error());
    static_cast<void>(make_run_dir(plan_.run_dir.path()));  // a last launcher has just removed it
  }
}

Status Launcher::begin() {
  if (Status joined = join_others(); !joined || !here_) return joined;
  Result<SocketLock> lock = SocketLock::take(plan_.run_dir.launcher_socket(getpid()));
  if (!lock) return fail(lock.error());
  Result<Listener> listener = Listener::bind(std::move(*lock));
  if (!listener) return fail(listener.error());
  socket_.emplace(std::move(*listener));
  watcher_.emplace(plan_.run_dir);
  if (plan_.mount) keeper_.emplace(plan_.run_dir, *plan_.mount, plan_, console_);
  for (const GroupPlan& group : plan_.groups) members_.emplace_back(group);
  for (Member& member : members_) {
    if (member.group.plan().fingerprint.empty()) {
      start(member);
    } else {
      member.group.presume_elsewhere();
    }
  }
  return {};
}

void Launcher::start(Member& member) {
  if (signals_.pending()) return;
  if (plan_.timeout && !member.deadline) {
    member.deadline = Clock::now() + *plan_.timeout;
    if (!plan_.nodes.single()) *member.deadline += kLastWord;
  }
  member.waits = must_wait(member);
  if (member.waits) return member.group.postpone();
  ++member.starts;
  // Daemons that look at the same moment would each find the memory free that only one of them can have.
  if (Status fits = check_budget(memory_to_come(member), std::nullopt, machine_memory_limits()); !fits)
    return member.group.refuse(fits.error(), plan_);
  static_cast<void>(member.group.start(plan_));  // a failure is the group's own, and announced as such
}

std::optional<int> Launcher::turn() {
  if (const int number = signals_.take(); number != 0) {
    stopped_at_ = Clock::now();
    return said_ready_ ? 0 : 128 + number;
  }
  const Sighting seen = watcher_->sighting();
  if (keeper_) {
    keeper_->tick(Clock::now(), seen);
    if (keeper_->error()) {
      const Error& error = *keeper_->error();
      leave_mount_ = error.key == "--mount";  // the one that is there is not the one asked for
      console_.note(printable(error.message));
      if (!error.hint.empty()) console_.note("hint: " + printable(error.hint));
      return exit_code(error.reason);
    }
  }
  for (Member& member : members_) look_after(member, seen);
  socket_->turn([&] { return status(); });
  update_watch();
  update_pair();
  show_progress();
  return verdict();
}

void Launcher::wait() {
  std::vector<pollfd> items = {{signals_.fd(), POLLIN, 0}, {watcher_->fd(), POLLIN, 0}};
  if (keeper_ && keeper_->fd() >= 0) items.push_back({keeper_->fd(), POLLIN, 0});
  socket_->watch(items);
  for (const Member& member : members_) member.group.watch(items);
  poll(items.data(), items.size(), kTurnMs);
  watcher_->clear();
}

/// Whether the entry can be used where READY will say it is.
bool Launcher::shown(const Member& member, const Sighting& seen) const {
  const bool stale = member.dropped && seen.began < *member.dropped;  // it may have seen what is gone
  return !keeper_ || (!stale && seen.visible.contains(entry_of(member.group)));
}

void Launcher::look_after(Member& member, const Sighting& seen) {
  Group& group = member.group;
  group.turn();
  const bool waits = group.phase() == GroupPhase::pending || group.phase() == GroupPhase::elsewhere;
  if (waits && member.said != group.phase() && member.deadline && Clock::now() >= *member.deadline)
    give_up(member,
            Error{Reason::timeout, "not ready within " + std::to_string(plan_.timeout->count()) + " s",
                  "give --timeout more seconds", "--timeout"});
  switch (group.phase()) {
    case GroupPhase::pending:
      if (member.waits) start(member);
      break;
    case GroupPhase::ready:
      if (shown(member, seen)) announce_ready(member);
      break;
    case GroupPhase::elsewhere:
      look_after_elsewhere(member, seen);
      break;
    case GroupPhase::lost:
      look_after_lost(member, seen);
      break;
    case GroupPhase::evicted:
      announce_evicted(member);
      break;
    case GroupPhase::failed:
      if (!begins_again(member, seen)) announce_failed(member);
      break;
  }
}

void Launcher::give_up(Member& member, Error error) {
  const bool begun = !std::exchange(member.waits, false);
  begun ? member.group.abandon(std::move(error)) : member.group.refuse(error, plan_);
}

void Launcher::look_after_elsewhere(Member& member, const Sighting& seen) {
  if (member.said == GroupPhase::elsewhere || !seen.node) return;
  const GroupPlan& plan = member.group.plan();
  const std::string print = member.group.fingerprint();
  const auto served = std::ranges::find_if(seen.node->groups, [&](const GroupStatus& other) {
    const bool lives =
        other.state == State::ready || other.state == State::filling || other.state == State::starting;
    return lives && other.role == to_string(plan.role) && other.fingerprint == print;
  });
  member.filled_elsewhere = served != seen.node->groups.end() && served->state != State::starting;
  if (served != seen.node->groups.end()) {
    member.unknown_since.reset();
    if (std::optional<Error> other = mismatch_of(plan_, plan, *served))
      return member.group.abandon(std::move(*other));
    if (served->state != State::ready || !shown(member, seen)) return;
    if (!member.group.served_elsewhere()) return;
    console_.note(entry_of(member.group) + " is already served by pid " +
                  std::to_string(served->ranks.front().pid));
    return announce_ready(member);
  }
  const Clock::time_point now = Clock::now();
  if (!member.unknown_since) member.unknown_since = now;
  if (member.starts == 0) return start(member);
  // Two launchers whose ranks have locked each other out do not begin again at the same moment.
  if (now - *member.unknown_since < kUnknownPatience + getpid() % 8 * kApart) return;
  // With other nodes there is one meeting only.
  if (member.starts > kMostRetries || !plan_.nodes.single())
    return member.group.abandon(member.group.error());
  member.unknown_since.reset();
  start(member);
}

void Launcher::look_after_lost(Member& member, const Sighting& seen) {
  const std::string entry = entry_of(member.group);
  const bool gone = !keeper_ || (seen.mount && !seen.visible.contains(entry));
  if (gone) {
    member.group.forget(member.kept_by != 0 && seen.mount && seen.mount->pid == member.kept_by);
    return member.group.phase() == GroupPhase::evicted ? announce_evicted(member) : announce_failed(member);
  }
  if (seen.mount) member.kept_by = seen.mount->pid;
  if (member.said == GroupPhase::lost) return;
  console_.note(member.group.error().message + "; the mount still serves " + entry +
                "; a new preload replaces it, where memory is short once nobody holds it");
  member.said = GroupPhase::lost;
}

void Launcher::announce_ready(Member& member) {
  if (member.said == member.group.phase()) return;
  member.said = member.group.phase();
  const GroupPlan& plan = member.group.plan();
  const std::string path = keeper_ ? keeper_->path() + "/" + entry_of(member.group) : "-";
  console_.line("READY " + std::string(to_string(plan.role)) + " " + member.group.fingerprint() + " " + path);
  said_ready_ = true;
}

void Launcher::announce_evicted(Member& member) {
  if (member.said == GroupPhase::evicted) return;
  member.said = GroupPhase::evicted;
  console_.note(entry_of(member.group) + " was evicted");
  last_was_evicted_ = true;
}

void Launcher::announce_failed(Member& member) {
  if (member.said == GroupPhase::failed) return;
  member.said = GroupPhase::failed;
  const Error& error = member.group.error();
  console_.error_line("FAILED " + std::string(to_string(member.group.plan().role)) + " " +
                      std::string(to_string(error.reason)) + ": " + printable(error.message));
  if (const std::string hint = hint_of(member); !hint.empty()) console_.note("hint: " + printable(hint));
  if (!first_error_) first_error_ = error;
  last_was_evicted_ = false;
}

void Launcher::update_watch() {
  std::vector<std::string> entries;
  bool urgent = keeper_ && keeper_->fd() < 0;
  bool node = false;
  for (const Member& member : members_) {
    const GroupPhase phase = member.group.phase();
    const bool looks = undecided(member);
    if (settled(phase) && !looks) continue;
    if (!member.group.fingerprint().empty()) entries.push_back(entry_of(member.group));
    if (member.said == phase) continue;
    urgent = urgent || phase != GroupPhase::pending;
    node = node || looks || phase == GroupPhase::elsewhere;
  }
  watcher_->want(std::move(entries), node, urgent);
}

/// Once both groups serve, the mount shows that they belong together.
void Launcher::update_pair() {
  PairRequest pair;
  for (const Member& member : members_) {
    const GroupPhase phase = member.group.phase();
    const bool serves =
        (phase == GroupPhase::ready || phase == GroupPhase::elsewhere) && member.said == phase;
    if (!serves) continue;
    (member.group.plan().role == Role::target ? pair.target : pair.draft) = member.group.fingerprint();
  }
  if (keeper_ && !pair.target.empty() && !pair.draft.empty()) watcher_->pair(pair);
}

void Launcher::show_progress() {
  std::vector<GroupProgress> rows;
  for (const Member& member : members_) {
    const GroupPhase phase = member.group.phase();
    const bool looks = undecided(member);
    if ((settled(phase) && !looks) || member.said) continue;
    GroupProgress row{std::string(to_string(member.group.plan().role)), member.group.plan().name, "starting"};
    State state = State::ready;
    for (const RankStatus& record : member.group.records()) {
      row.filled += record.filled;
      row.nbytes += record.nbytes;
      row.rate += record.rate;
      if (record.state == State::filling || record.state == State::starting) state = record.state;
    }
    if (phase == GroupPhase::pending && state != State::ready) row.state = to_string(state);
    if (const std::string waits = member.group.waits_for(); !waits.empty()) row.state = waits;
    if (phase == GroupPhase::ready) row.state = "waiting for the mount";
    if (phase == GroupPhase::elsewhere) row.state = "waiting for who serves it";
    if (looks) row.state = "waiting for memory";
    rows.push_back(std::move(row));
  }
  console_.show(rows, Clock::now());
}

std::optional<int> Launcher::verdict() {
  bool all_elsewhere = true;
  for (const Member& member : members_) {
    const GroupPhase phase = member.group.phase();
    const bool told = member.said == phase && (phase != GroupPhase::failed || member.group.told_others());
    if (!told || phase == GroupPhase::ready || phase == GroupPhase::lost) return std::nullopt;
    if (phase != GroupPhase::elsewhere) all_elsewhere = false;
  }
  if (!all_elsewhere) return last_was_evicted_ || !first_error_ ? 0 : exit_code(first_error_->reason);
  if (keeper_ && keeper_->started_it()) return std::nullopt;  // stays for the mount
  return 0;
}

StatusReply Launcher::status() const {
  StatusReply reply;
  reply.pid = getpid();
  for (const Member& member : members_) {
    if (member.group.phase() == GroupPhase::evicted || undecided(member)) continue;
    for (RankStatus& record : member.group.records()) reply.ranks.push_back(std::move(record));
  }
  return reply;
}

/// Whether the mount shows what daemons serve whose launcher was killed; its own have ended.
bool Launcher::others_serve() const {
  const std::vector<RankStatus> ranks = serving_ranks(plan_.run_dir);
  for (const RankStatus& rank : ranks)
    console_.note("left the mount: pid " + std::to_string(rank.pid) + " serves " + rank.role + "/" +
                  rank.fingerprint + ", and its launcher is gone; 'wcache evict' ends it");
  return !ranks.empty();
}

void Launcher::stop() {
  std::vector<std::string> orphans;
  for (const Member& member : members_) {
    if (member.group.phase() == GroupPhase::lost) orphans.push_back(entry_of(member.group));
  }
  stop_groups();
  socket_.reset();
  const bool last = here_ && here_->become_last();
  const bool takes_mount = last && !leave_mount_ && !others_serve();
  if (!takes_mount) drop_orphans(orphans);
  if (takes_mount) {
    // A launcher without a mount of its own may be the last to go as well.
    if (!keeper_) keeper_.emplace(plan_.run_dir, MountPlan{}, plan_, console_);
    keeper_->take_down();
  }
  keeper_.reset();
  watcher_.reset();
  if (last) clear_run_dir();
  here_.reset();
}

/// Whether there is a signal more than the one that ended the launcher.
bool Launcher::impatient() const {
  return signals_.take() != 0 && (!stopped_at_ || Clock::now() - *stopped_at_ >= kOneWish);
}

void Launcher::stop_groups() {
  const auto running = [&] {
    return std::ranges::any_of(members_, [](const Member& member) { return member.group.running(); });
  };
  const auto signal_all = [&](int number) {
    for (const Member& member : members_) member.group.signal(number);
  };
  const Deadline deadline = deadline_in(kGentleEnd);
  for (Member& member : members_) member.group.leave();
  signal_all(SIGTERM);
  while (running() && remaining_ms(deadline) > 0 && !impatient()) {
    std::vector<pollfd> items = {{signals_.fd(), POLLIN, 0}};
    for (const Member& member : members_) member.group.watch(items);
    poll(items.data(), items.size(), std::min(remaining_ms(deadline), kTurnMs));
    for (Member& member : members_) member.group.turn();
  }
  if (running()) console_.note("killing daemons that do not end");
  std::vector<std::string> sockets;
  for (const Member& member : members_) {
    if (member.group.phase() == GroupPhase::elsewhere) continue;
    const std::vector<std::string> own = member.group.sockets();
    sockets.insert(sockets.end(), own.begin(), own.end());
  }
  members_.clear();  // kills what is left
  for (const std::string& socket : sockets) remove_stale_socket(socket);
}

/// Of a mount that stays: what it still holds of this launcher's groups.
void Launcher::drop_orphans(const std::vector<std::string>& entries) const {
  for (const std::string& entry : entries) {
    Result<Client> mount = Client::connect(plan_.run_dir.mount_socket(), Purpose::launcher, "wcache preload",
                                           deadline_in(kDropOrphan));
    if (!mount) return;
    const std::size_t slash = entry.find('/');
    const Result<EvictReply> reply = mount->request<EvictReply>(
        EvictRequest{entry.substr(0, slash), entry.substr(slash + 1)}, deadline_in(kDropOrphan));
    if (!reply) console_.note("the mount keeps " + entry + ": " + printable(reply.error().message));
  }
}

void Launcher::clear_run_dir() {
  sweep_run_dir(plan_.run_dir);
  here_.reset();
  if (run_dir_was_made(plan_.run_dir)) remove_made_run_dir(plan_.run_dir);
}

}  // namespace wcache

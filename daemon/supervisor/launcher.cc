#include "daemon/supervisor/launcher.h"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <utility>

#include "core/format.h"
#include "daemon/budget.h"
#include "daemon/supervisor/made_run_dir.h"
#include "ipc/client.h"
#include "ipc/listener.h"
#include "ipc/socket_lock.h"

namespace wcache {
namespace {

constexpr std::array kStopSignals = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
constexpr std::chrono::seconds kWaitForLast{30};  // for a last launcher to clear up
constexpr std::chrono::seconds kGentleEnd{15};    // for daemons to end on SIGTERM
constexpr std::chrono::milliseconds kApart{250};
constexpr std::chrono::seconds kUnknownPatience{3};  // for a daemon elsewhere that nobody knows
constexpr std::chrono::seconds kDropOrphan{2};
constexpr std::chrono::seconds kLastWord{3};  // for the nodes' meeting to say itself who is late
constexpr unsigned kMostRetries = 3;
constexpr int kTurnMs = 100;

sigset_t stop_set() {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : kStopSignals) sigaddset(&set, number);
  return set;
}

bool settled(GroupPhase phase) {
  return phase == GroupPhase::failed || phase == GroupPhase::evicted;
}

template <class Ranks>
std::string devices_of(const Ranks& ranks) {
  std::string text;
  for (const auto& rank : ranks) text += (text.empty() ? "" : ", ") + rank.device_uuid;
  return text;
}

/// One role and fingerprint has one group, wherever it is: it will do where each rank is where it was wanted.
std::optional<Error> other_device(const GroupPlan& plan, const GroupStatus& served) {
  const auto is_there = [&](const RankPlan& rank) {
    return std::ranges::any_of(served.ranks, [&](const RankStatus& other) {
      return other.rank == rank.rank && other.device_uuid == rank.device_uuid;
    });
  };
  if (std::ranges::all_of(plan.ranks, is_there)) return std::nullopt;
  return Error{Reason::mismatch,
               "device: " + served.role + "/" + served.fingerprint + " is served on " +
                   devices_of(served.ranks) + ", not on " + devices_of(plan.ranks),
               "evict it first, or leave --device out to take it where it is", "device"};
}

}  // namespace

void StopSignals::block() {
  const sigset_t set = stop_set();
  sigprocmask(SIG_BLOCK, &set, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
}

void StopSignals::unblock() {
  const sigset_t set = stop_set();
  sigprocmask(SIG_UNBLOCK, &set, nullptr);
  std::signal(SIGPIPE, SIG_DFL);
}

Result<StopSignals> StopSignals::open() {
  const sigset_t set = stop_set();
  Fd fd = Fd::adopt(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd) return fail_errno("signalfd", errno);
  return StopSignals(std::move(fd));
}

int StopSignals::take() const {
  signalfd_siginfo info{};
  return read(fd_.get(), &info, sizeof info) == sizeof info ? static_cast<int>(info.ssi_signo) : 0;
}

bool StopSignals::pending() const {
  pollfd item{fd_.get(), POLLIN, 0};
  return poll(&item, 1, 0) > 0;
}

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
  ++member.starts;
  if (plan_.timeout && !member.deadline) {
    member.deadline = Clock::now() + *plan_.timeout;
    if (!plan_.nodes.single()) *member.deadline += kLastWord;
  }
  // Daemons that look at the same moment would each find the memory free that only one of them can have.
  if (Status fits = check_budget(memory_to_come(member), std::nullopt, machine_memory_limits()); !fits)
    return member.group.refuse(fits.error(), plan_);
  static_cast<void>(member.group.start(plan_));  // a failure is the group's own, and announced as such
}

/// The host memory that a group which is about to start will take, and what others have not taken yet.
std::uint64_t Launcher::memory_to_come(const Member& member) const {
  std::uint64_t sum = 0;
  for (const RankPlan& rank : member.group.plan().ranks) sum += rank.memory - rank.device_memory;
  for (const Member& other : members_) {
    if (&other == &member || other.group.phase() != GroupPhase::pending) continue;
    const std::vector<RankStatus> records = other.group.records();
    for (std::size_t i = 0; i < records.size(); ++i) {
      const RankPlan& rank = other.group.plan().ranks[i];
      if (records[i].state == State::starting) sum += rank.memory - rank.device_memory;
    }
  }
  return sum;
}

std::optional<int> Launcher::turn() {
  if (const int number = signals_.take(); number != 0) return said_ready_ ? 0 : 128 + number;
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
bool Launcher::shown(const std::string& entry, const Sighting& seen) const {
  return !keeper_ || seen.visible.contains(entry);
}

void Launcher::look_after(Member& member, const Sighting& seen) {
  Group& group = member.group;
  group.turn();
  const bool waits = group.phase() == GroupPhase::pending || group.phase() == GroupPhase::elsewhere;
  if (waits && member.said != group.phase() && member.deadline && Clock::now() >= *member.deadline)
    group.abandon(Error{Reason::timeout, "not ready within " + std::to_string(plan_.timeout->count()) + " s",
                        "give --timeout more seconds", "--timeout"});
  switch (group.phase()) {
    case GroupPhase::pending:
      break;
    case GroupPhase::ready:
      if (shown(entry_of(group), seen)) announce_ready(member);
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
      announce_failed(member);
      break;
  }
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
  if (served != seen.node->groups.end()) {
    member.unknown_since.reset();
    if (std::optional<Error> other = plan_.device_asked ? other_device(plan, *served) : std::nullopt)
      return member.group.abandon(std::move(*other));
    if (served->state != State::ready || !shown(entry_of(member.group), seen)) return;
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
                ", a new preload replaces it");
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
  if (!error.hint.empty()) console_.note("hint: " + printable(error.hint));
  if (!first_error_) first_error_ = error;
  last_was_evicted_ = false;
}

void Launcher::update_watch() {
  std::vector<std::string> entries;
  bool urgent = keeper_ && keeper_->fd() < 0;
  bool node = false;
  for (const Member& member : members_) {
    const GroupPhase phase = member.group.phase();
    if (settled(phase)) continue;
    if (!member.group.fingerprint().empty()) entries.push_back(entry_of(member.group));
    if (member.said == phase) continue;
    urgent = urgent || phase != GroupPhase::pending;
    node = node || phase == GroupPhase::elsewhere;
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
    if (settled(phase) || member.said) continue;
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
  leave_mount_ = true;
  return 0;
}

StatusReply Launcher::status() const {
  StatusReply reply;
  reply.pid = getpid();
  for (const Member& member : members_) {
    if (member.group.phase() == GroupPhase::evicted) continue;
    for (RankStatus& record : member.group.records()) reply.ranks.push_back(std::move(record));
  }
  return reply;
}

void Launcher::stop() {
  std::vector<std::string> orphans;
  for (const Member& member : members_) {
    if (member.group.phase() == GroupPhase::lost) orphans.push_back(entry_of(member.group));
  }
  stop_groups();
  socket_.reset();
  const bool last = here_ && here_->become_last();
  if (!last) drop_orphans(orphans);
  if (last && !leave_mount_) {
    // A launcher without a mount of its own may be the last to go as well.
    if (!keeper_) keeper_.emplace(plan_.run_dir, MountPlan{}, plan_, console_);
    keeper_->take_down();
  }
  keeper_.reset();
  watcher_.reset();
  if (last) clear_run_dir();
  here_.reset();
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
  while (running() && remaining_ms(deadline) > 0 && signals_.take() == 0) {
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

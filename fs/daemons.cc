#include "fs/daemons.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <set>
#include <utility>

namespace wcache {
namespace {

constexpr std::chrono::milliseconds kRescan{1000};  // for events that were lost, and for tries that are due
constexpr std::chrono::milliseconds kFirstPause{100};
constexpr std::chrono::milliseconds kLongestPause{5000};

}  // namespace

Result<std::unique_ptr<Daemons>> Daemons::start(RunDir run_dir, Groups& groups, spdlog::logger& log) {
  Fd events = Fd::adopt(inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  if (!events) return fail_errno("inotify", errno);
  if (inotify_add_watch(events.get(), run_dir.path().c_str(), IN_CREATE | IN_MOVED_TO) < 0)
    return fail_errno("watching " + run_dir.path(), errno);
  Fd wake = Fd::adopt(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake) return fail_errno("eventfd", errno);
  std::unique_ptr<Daemons> daemons(
      new Daemons(std::move(run_dir), groups, std::move(events), std::move(wake), log));
  daemons->thread_ = std::thread([self = daemons.get()] { self->run(); });
  return daemons;
}

Daemons::Daemons(RunDir run_dir, Groups& groups, Fd events, Fd wake, spdlog::logger& log)
    : run_dir_(std::move(run_dir)),
      groups_(groups),
      log_(log),
      events_(std::move(events)),
      wake_(std::move(wake)) {}

Daemons::~Daemons() {
  stopping_ = true;
  const std::uint64_t one = 1;
  if (write(wake_.get(), &one, sizeof one) != sizeof one) log_.debug("eventfd is raised already");
  thread_.join();
}

void Daemons::run() {
  bool changed = true;
  while (!stopping_) {
    scan(changed);
    std::array<pollfd, 2> fds{pollfd{events_.get(), POLLIN, 0}, pollfd{wake_.get(), POLLIN, 0}};
    if (poll(fds.data(), fds.size(), static_cast<int>(kRescan.count())) < 0 && errno != EINTR)
      log_.error("poll: errno {}", errno);
    std::uint64_t count = 0;
    if (read(wake_.get(), &count, sizeof count) < 0 && errno != EAGAIN)
      log_.error("eventfd: errno {}", errno);
    changed = drain_events();
  }
  rows_.clear();
}

/// Whether something happened in the run directory.
bool Daemons::drain_events() {
  alignas(inotify_event) std::array<char, 4096> buffer{};
  bool any = false;
  while (read(events_.get(), buffer.data(), buffer.size()) > 0) any = true;
  return any;
}

/// Starts links to sockets that have none. `changed`: without regard to pauses after failures.
void Daemons::scan(bool changed) {
  end_links();
  Result<std::vector<RunDir::Socket>> sockets = run_dir_.sockets();
  if (!sockets) {
    log_.debug("{}", sockets.error().message);
    return;
  }
  std::set<std::string> present;
  for (const RunDir::Socket& socket : *sockets) {
    if (socket.kind != RunDir::SocketKind::rank) continue;
    present.insert(socket.path);
    Row& row = rows_[socket.path];
    if (row.link || (!changed && Clock::now() < row.next_try)) continue;
    row.link = std::make_unique<DaemonLink>(socket.path, next_link_++, groups_, wake_.get(), log_);
  }
  std::erase_if(rows_, [&](const auto& row) { return !row.second.link && !present.contains(row.first); });
}

void Daemons::end_links() {
  for (auto& [path, row] : rows_) {
    if (!row.link || !row.link->ended()) continue;
    row.pause = row.link->joined() ? kFirstPause : std::clamp(row.pause * 2, kFirstPause, kLongestPause);
    row.next_try = Clock::now() + row.pause;
    row.link.reset();
  }
}

}  // namespace wcache

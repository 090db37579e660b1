#include "daemon/daemon.h"

#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <utility>

#include "daemon/memory/cuda/loading.h"

namespace wcache {
namespace {

/// A launcher shows progress twice a second at least.
constexpr std::chrono::milliseconds kReportEvery{400};

/// A fill that is told to stop waits five seconds for its reads.
constexpr std::chrono::seconds kLoadingEnds{8};

double unix_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

void set_state(RankStatus& status, State state) {
  status.state = state;
  status.since = unix_now();
}

void set_failed(RankStatus& status, const Error& error) {
  set_state(status, State::failed);
  status.reason = to_string(error.reason);
  status.message = error.message;
  status.hint = error.hint;
  status.rate = 0;
}

}  // namespace

int Stop::exit_code() const {
  return error ? wcache::exit_code(error->reason) : 0;
}

Daemon::Daemon(DaemonOptions options, const RunDir& run_dir, int signals, std::optional<Connection> launcher,
               EventLoop& loop, spdlog::logger& log, Load load)
    : options_(std::move(options)),
      run_dir_(run_dir),
      signals_(signals),
      loop_(loop),
      log_(log),
      load_(std::move(load)),
      launcher_(
          loop, std::move(launcher), [this] { launcher_gone(); },
          [this](Body body) { heard(std::move(body)); }) {
  status_.role = to_string(options_.group.role);
  status_.name = options_.name;
  status_.source = options_.group.route.target;
  status_.rank = options_.rank;
  status_.node_ranks = options_.node_ranks;
  status_.pid = getpid();
  status_.device_uuid = device_uuid();
  status_.tier = options_.device_uuid.empty() ? "host" : "cuda";
  set_state(status_, State::starting);
}

std::string Daemon::device_uuid() const {
  return options_.device();
}

Stop Daemon::run() {
  if (Status watched = loop_.watch(signals_, EPOLLIN, [this](std::uint32_t) { signalled(); }); !watched)
    return Stop{StopReason::failed, watched.error()};
  start_loading();
  report_regularly();
  const Status ran = loop_.run();
  loop_.unwatch(signals_);
  server_.reset();
  if (!ran) stop_ = Stop{StopReason::failed, ran.error()};
  if (loading_) {
    const std::string device =
        options_.device_uuid.empty() ? "" : ", or the driver of " + device_uuid() + ",";
    log_.error("a read of {}{} does not end; leaving it behind", status_.source, device);
    log_.flush();
    _exit(stop_->exit_code());
  }
  return *stop_;
}

// ---- loading
// --------------------------------------------------------------------------------------------------------

void Daemon::start_loading() {
  LoadRequest request;
  request.group = options_.group;
  request.rank = options_.rank;
  request.node_ranks = options_.node_ranks;
  request.grouped = options_.grouped;
  request.name = options_.name;
  request.placement.device_uuid = device_uuid();
  LoadEvents events;
  events.planned = [this](const EntryPlan& plan) { planned(plan); };
  events.agree = [this, stop = stop_loading_.get_token()](const Key& own) { return agree(own, stop); };
  events.known = [this](const Fingerprint& fingerprint) { return known(fingerprint); };
  events.progress = [this](const FillProgress& progress) {
    loop_.post([this, progress] {
      if (stop_) return;
      if (status_.state == State::starting) set_state(status_, State::filling);
      status_.filled = progress.filled;
      status_.rate = progress.rate;
      report();
    });
  };
  loading_ = true;
  loader_.run([this, request, events, stop = stop_loading_.get_token()](const std::stop_token&) {
    auto entry = std::make_shared<Result<StoredEntry>>(load_(request, events, stop));
    loop_.post([this, entry] { loaded(std::move(*entry)); });
  });
}

void Daemon::planned(const EntryPlan& plan) {
  RankStatus known;
  known.name = plan.name;
  known.layout = to_string(plan.layout);
  known.source = plan.source;
  known.nbytes = plan.nbytes();
  known.tensors = plan.tensor_count();
  known.tp_size = plan.tp_size;
  loop_.post([this, known = std::move(known)] {
    status_.name = known.name;
    status_.layout = known.layout;
    status_.source = known.source;
    status_.nbytes = known.nbytes;
    status_.tensors = known.tensors;
    status_.tp_size = known.tp_size;
    report();
  });
}

Status Daemon::known(const Fingerprint& fingerprint) {
  const std::string path = run_dir_.rank_socket(options_.group.role, fingerprint, device_uuid());
  loop_.post([this, fingerprint, path] {
    status_.fingerprint = to_hex(fingerprint);
    status_.socket = path;
    report();
  });
  // One role and fingerprint has one group, wherever it is: a rank on a device also locks the place that it
  // would have in host memory.
  const std::string place =
      run_dir_.rank_socket(options_.group.role, fingerprint, "HOST-" + std::to_string(options_.rank));
  std::optional<SocketLock> place_lock;
  if (place != path) {
    Result<SocketLock> taken = SocketLock::take(place);
    if (!taken) return fail(std::move(taken.error()));
    place_lock = std::move(*taken);
  }
  Result<SocketLock> lock = SocketLock::take(path);
  if (!lock) return fail(std::move(lock.error()));
  const std::lock_guard guard(mutex_);
  place_lock_ = std::move(place_lock);
  lock_ = std::move(*lock);
  return {};
}

void Daemon::loaded(Result<StoredEntry> entry) {
  loading_ = false;
  if (stop_) return finish();
  if (entry) {
    entry_ = std::move(*entry);
    if (Status served = options_.grouped ? launcher_.send_surely(Sealed{}) : serve(); served)
      return;
    else
      return begin_stop(Stop{StopReason::failed, served.error()});
  }
  begin_stop(Stop{StopReason::failed, std::move(entry.error())});
}

/// Tells the launcher what this rank holds and waits for what the group holds.
Result<Key> Daemon::agree(const Key& own, const std::stop_token& stop) {
  loop_.post([this, own] {
    for (GroupFiles& page : file_pages_of(own.files))
      if (Status told = launcher_.send_surely(std::move(page)); !told)
        return begin_stop(Stop{StopReason::failed, told.error()});
  });
  std::unique_lock lock(mutex_);
  if (!agreed_.wait(lock, stop, [this] { return group_key_.has_value(); }))
    return fail(Reason::timeout, "stopped before the group had agreed");
  Key key = own;
  key.files = group_key_->files;
  return key;
}

/// What a launcher says to a rank of a group: the group's files, then that it may publish.
void Daemon::heard(Body body) {
  if (auto* page = std::get_if<GroupFiles>(&body)) {
    for (Key::File& file : page->files) group_files_.push_back(std::move(file));
    if (page->more) return;
    {
      const std::lock_guard lock(mutex_);
      group_key_.emplace();
      group_key_->files = std::move(group_files_);
    }
    agreed_.notify_all();
  } else if (std::holds_alternative<Publish>(body) && entry_ && !server_ && !stop_) {
    if (Status served = serve(); !served) begin_stop(Stop{StopReason::failed, served.error()});
  }
}

Status Daemon::serve() {
  std::optional<SocketLock> lock;
  {
    const std::lock_guard guard(mutex_);
    lock = std::exchange(lock_, std::nullopt);
  }
  if (!lock) return fail(Reason::internal, "an entry was loaded without its lock");
  Result<Listener> listener = Listener::bind(std::move(*lock));
  if (!listener) return fail(std::move(listener.error()));
  status_.ipc_kind = entry_->device ? ipc_kind(entry_->device->ipc()) : Placement{}.ipc_kind;
  if (!entry_->device) status_.pages = to_string(entry_->memory.pages);
  status_.fill_path = to_string(entry_->fill_path);
  status_.filled = status_.nbytes;
  status_.rate = 0;
  status_.survives = !entry_->device || entry_->device->ipc() == DeviceIpc::vmm;
  set_state(status_, State::ready);
  server_.emplace(loop_, std::move(*listener), *entry_,
                  Server::Events{[this] { return current_status(); },
                                 [this] {
                                   begin_stop(Stop{StopReason::evicted, std::nullopt});
                                 }},
                  log_);
  if (Status started = server_->start(); !started) return started;
  if (!entry_->fill_note.empty()) log_.info("filled by {}: {}", status_.fill_path, entry_->fill_note);
  if (!entry_->memory.note.empty()) log_.info("held in memfds: {}", entry_->memory.note);
  log_.info("ready: {} {}, {} bytes of {}", status_.role, status_.fingerprint, status_.nbytes,
            status_.source);
  report();
  return {};
}

// ---- reporting and ending
// -------------------------------------------------------------------------------------------

RankStatus Daemon::current_status() const {
  RankStatus status = status_;
  if (!entry_ || !entry_->device) return status;
  status.context = entry_->device->has_context();
  status.device_nbytes = entry_->device->nbytes();
  return status;
}

void Daemon::report() {
  launcher_.send(current_status());
}

void Daemon::report_regularly() {
  if (stop_ || status_.state == State::ready) return;
  report();
  loop_.at(deadline_in(kReportEvery), [this] { report_regularly(); });
}

void Daemon::signalled() {
  signalfd_siginfo info{};
  if (read(signals_, &info, sizeof info) != sizeof info) return;
  log_.info("signal {}: ending", info.ssi_signo);
  begin_stop(Stop{StopReason::signal, std::nullopt});
}

void Daemon::launcher_gone() {
  if (status_.state == State::ready) {
    log_.info("the launcher is gone; serving on");
    return;
  }
  log_.warn("the launcher is gone before the entry was ready: ending");
  begin_stop(Stop{StopReason::launcher_gone, std::nullopt});
}

/// The first reason counts. What others may still see is taken back first, then the loading thread ends.
void Daemon::begin_stop(Stop stop) {
  if (stop_) return;
  stop_ = std::move(stop);
  stop_loading_.request_stop();
  if (loading_) loop_.at(deadline_in(kLoadingEnds), [this] { end_now(); });
  if (!server_ || stop_->reason == StopReason::evicted) return finish();
  server_->withdraw([this] { finish(); });
}

void Daemon::finish() {
  if (loading_) return;  // loaded() comes back here
  end_now();
}

void Daemon::end_now() {
  {
    const std::lock_guard guard(mutex_);
    lock_.reset();
  }
  switch (stop_->reason) {
    case StopReason::signal:
    case StopReason::launcher_gone:
      break;
    case StopReason::evicted:
      set_failed(status_, Error{Reason::evicted, "evicted on request"});
      launcher_.send_last(status_);
      break;
    case StopReason::failed:
      // Somebody else serving it is how a race between two launchers ends, and no failure.
      log_.log(stop_->error->reason == Reason::busy ? spdlog::level::info : spdlog::level::err, "{}",
               stop_->error->message);
      if (!stop_->error->hint.empty()) log_.error("{}", stop_->error->hint);
      set_failed(status_, *stop_->error);
      launcher_.send_last(status_);
      break;
  }
  loop_.stop();
}

}  // namespace wcache

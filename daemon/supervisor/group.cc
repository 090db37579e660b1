#include "daemon/supervisor/group.h"

#include <signal.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>
#include <variant>

#include "ipc/client.h"
#include "ipc/message.h"

namespace wcache {
namespace {

constexpr std::chrono::seconds kTell{2};  // for a daemon to take a message

Error error_of(const RankStatus& record) {
  return Error{reason_from_string(record.reason), record.message, record.hint};
}

void mark_failed(RankStatus& record, const Error& error) {
  record.state = State::failed;
  record.reason = to_string(error.reason);
  record.message = error.message;
  record.hint = error.hint;
  record.rate = 0;
  record.since = unix_time();
}

std::string title_of(const RankStatus& record) {
  return "wcached of " + record.role + " rank " + std::to_string(record.rank) + " (pid " +
         std::to_string(record.pid) + ")";
}

Error died_before_ready(const RankStatus& record, const ExitStatus& status) {
  const bool killed = status.signal == SIGKILL;
  return Error{Reason::internal, title_of(record) + " ended before it was ready: " + status.describe(),
               killed ? "if nobody killed it, the kernel did for want of memory: see dmesg" : ""};
}

}  // namespace

double unix_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

Group::Group(GroupPlan plan) : plan_(std::move(plan)) {}

Group::~Group() {
  for (Rank& rank : ranks_) {
    if (!rank.process || rank.process->ended()) continue;
    rank.process->signal(SIGKILL);
    rank.process->wait(deadline_in(std::chrono::seconds(5)));
  }
}

RankStatus Group::first_record(const RankPlan& rank) const {
  RankStatus record;
  record.role = to_string(plan_.role);
  record.name = plan_.name;
  record.fingerprint = plan_.fingerprint;
  record.source = plan_.source;
  record.nbytes = plan_.nbytes;
  record.rank = rank.rank;
  record.node_ranks = static_cast<std::uint32_t>(plan_.ranks.size());
  record.device_uuid = rank.device_uuid;
  record.since = unix_time();
  return record;
}

std::vector<std::string> Group::arguments_of(const GroupPlan& plan, const RankPlan& rank,
                                             const LaunchPlan& launch, int launcher_fd) {
  std::vector<std::string> words = {"--model",       plan.model,
                                    "--role",        std::string(to_string(plan.role)),
                                    "--rank",        std::to_string(rank.rank),
                                    "--name",        plan.name,
                                    "--run-dir",     launch.run_dir.path(),
                                    "--device",      rank.ipc ? "cuda:" + rank.device_uuid : "host",
                                    "--launcher-fd", std::to_string(launcher_fd)};
  const auto add = [&](const char* option, std::string value) {
    words.emplace_back(option);
    words.push_back(std::move(value));
  };
  if (rank.ipc) add("--ipc", std::string(to_string(*rank.ipc)));
  words.insert(words.end(), plan.key_words.begin(), plan.key_words.end());
  if (plan.grouped()) {
    words.emplace_back("--grouped");
    add("--node-ranks", std::to_string(plan.ranks.size()));
  }
  if (rank.memory_limit > 0) add("--memory-limit", std::to_string(rank.memory_limit));
  if (!launch.log_level.empty()) add("--log-level", launch.log_level);
  return words;
}

Status Group::start_rank(const LaunchPlan& launch, const RankPlan& plan, Rank& rank) const {
  Result<std::pair<Connection, Connection>> ends = Connection::pair();
  if (!ends) return fail(ends.error());
  auto& [ours, theirs] = *ends;
  const std::array inherited = {theirs.fd()};
  Result<Process> process = Process::start(launch.wcached, arguments_of(plan_, plan, launch, theirs.fd()),
                                           {.inherited = inherited});
  if (!process) return fail(process.error());
  rank.record.pid = process->pid();
  rank.process = std::move(*process);
  rank.connection = std::move(ours);
  return {};
}

Status Group::start(const LaunchPlan& launch) {
  ranks_.clear();
  phase_ = GroupPhase::pending;
  if (plan_.refusal) {
    refuse(*plan_.refusal, launch);
    return fail(*plan_.refusal);
  }
  published_ = false;
  agreement_.reset();  // before another one takes its port
  if (plan_.grouped()) {
    Result<std::unique_ptr<Agreement>> agreement = Agreement::start(plan_, launch);
    if (!agreement) {
      refuse(agreement.error(), launch);
      return fail(agreement.error());
    }
    agreement_ = std::move(*agreement);
  }
  for (const RankPlan& plan : plan_.ranks) {
    Rank& rank = ranks_.emplace_back();
    rank.record = first_record(plan);
    if (Status started = start_rank(launch, plan, rank); !started) {
      rank.ended = true;
      mark_failed(rank.record, started.error());
      abandon(started.error());
      return started;
    }
  }
  return {};
}

void Group::watch(std::vector<pollfd>& items) const {
  const bool agrees = phase_ == GroupPhase::pending || phase_ == GroupPhase::elsewhere;
  if (agrees && agreement_ && agreement_->fd() >= 0) items.push_back({agreement_->fd(), POLLIN, 0});
  for (const Rank& rank : ranks_) {
    if (rank.connection) items.push_back({rank.connection->fd(), POLLIN, 0});
    if (!rank.ended && rank.process) items.push_back({rank.process->fd(), POLLIN, 0});
  }
}

void Group::take(Rank& rank, RankStatus status) const {
  // What the launcher said when it started the daemon stays true; the daemon need not repeat it.
  status.pid = rank.record.pid;
  status.rank = rank.record.rank;
  if (status.role.empty()) status.role = rank.record.role;
  if (status.name.empty()) status.name = rank.record.name;
  if (!rank.record.source.empty()) status.source = rank.record.source;
  if (status.device_uuid.empty()) status.device_uuid = rank.record.device_uuid;
  if (status.fingerprint.empty()) status.fingerprint = rank.record.fingerprint;
  if (status.nbytes == 0) status.nbytes = rank.record.nbytes;
  if (status.state == State::failed && plan_.ranks.size() > 1)
    status.message = "rank " + std::to_string(status.rank) + ": " + status.message;
  if (status.since == 0) status.since = status.state == rank.record.state ? rank.record.since : unix_time();
  rank.record = std::move(status);
}

void Group::listen(Rank& rank) {
  while (rank.connection) {
    Result<std::optional<Message>> message = rank.connection->receive({kMaxMessageBytes, 0}, Deadline{});
    if (!message && message.error().reason == Reason::timeout) return;
    if (!message || !*message) {
      rank.connection.reset();  // its end is told by the process
      return;
    }
    Result<Envelope> envelope = decode((*message)->bytes);
    if (!envelope) {
      rank.connection.reset();
      return abandon(Error{Reason::internal, title_of(rank.record) +
                                                 " sent an unexpected message: " + envelope.error().message});
    }
    take_message(rank, std::move(envelope->body));
  }
}

void Group::take_message(Rank& rank, Body body) {
  const auto index = static_cast<std::size_t>(&rank - ranks_.data());
  if (auto* status = std::get_if<RankStatus>(&body)) return take(rank, std::move(*status));
  if (auto* page = std::get_if<GroupFiles>(&body); page != nullptr && agreement_)
    return agreement_->add_files(index, std::move(*page));
  if (std::holds_alternative<Sealed>(body) && agreement_) return agreement_->sealed(index);
  rank.connection.reset();
  abandon(Error{Reason::internal,
                title_of(rank.record) + " sent an unexpected message: " + std::string(name_of(body))});
}

void Group::tell_all(const Body& body) {
  for (Rank& rank : ranks_) {
    if (!rank.connection) continue;
    if (Status told = send_message(*rank.connection, Envelope{0, body}, deadline_in(kTell)); !told)
      return abandon(
          Error{Reason::internal, title_of(rank.record) + " does not listen: " + told.error().message});
  }
}

/// Passes on what the ranks of the group, here and on other nodes, have settled.
void Group::agree() {
  if (!agreement_ || (phase_ != GroupPhase::pending && phase_ != GroupPhase::elsewhere)) return;
  Agreement::Step step = agreement_->step();
  if (step.failed) return abandon(std::move(*step.failed));
  if (step.agreed) {
    for (const GroupFiles& page : file_pages_of(step.agreed->files)) tell_all(page);
  }
  if (!step.published) return;
  published_ = true;
  tell_all(Publish{});
}

bool Group::served_elsewhere() {
  if (!agreement_ || plan_.port == 0) return true;
  agreement_->served();
  return published_;
}

void Group::end(Rank& rank, const ExitStatus& status) {
  rank.ended = true;
  rank.connection.reset();
  if (rank.record.state == State::ready) {
    rank.record.state = State::orphaned;
    rank.record.message = title_of(rank.record) + " ended: " + status.describe();
    rank.record.since = unix_time();
  } else if (rank.record.state != State::failed) {
    mark_failed(rank.record, died_before_ready(rank.record, status));
  }
  rank.record.pid = 0;
  rank.record.context = false;
}

void Group::turn() {
  for (Rank& rank : ranks_) {
    listen(rank);
    if (rank.ended || !rank.process) continue;
    const std::optional<ExitStatus> status = rank.process->ended();
    if (!status) continue;
    listen(rank);  // what it said last
    end(rank, *status);
  }
  settle();
  agree();
}

void Group::settle() {
  if (phase_ == GroupPhase::failed || phase_ == GroupPhase::evicted || phase_ == GroupPhase::elsewhere)
    return;
  bool all_ready = !ranks_.empty();
  for (const Rank& rank : ranks_) {
    if (rank.record.state != State::ready) all_ready = false;
    if (rank.record.state == State::orphaned) {
      phase_ = GroupPhase::lost;
      error_ = Error{Reason::internal, rank.record.message};
    }
    if (rank.record.state != State::failed) continue;
    const Error error = error_of(rank.record);
    if (error.reason == Reason::evicted) {
      phase_ = GroupPhase::evicted;
      return signal(SIGTERM);
    }
    if (error.reason == Reason::busy && !rank.record.fingerprint.empty()) {
      phase_ = GroupPhase::elsewhere;
      error_ = error;
      return signal(SIGTERM);
    }
    return abandon(error);
  }
  if (all_ready) phase_ = GroupPhase::ready;
}

void Group::abandon(Error error) {
  for (Rank& rank : ranks_) {
    if (rank.record.state != State::failed) mark_failed(rank.record, error);
  }
  if (agreement_) agreement_->fail(error);
  error_ = std::move(error);
  phase_ = GroupPhase::failed;
  signal(SIGTERM);
}

void Group::postpone() {
  ranks_.clear();
  for (const RankPlan& plan : plan_.ranks) {
    Rank& rank = ranks_.emplace_back();
    rank.record = first_record(plan);
    rank.ended = true;
  }
  phase_ = GroupPhase::pending;
}

void Group::refuse(const Error& error, const LaunchPlan& launch) {
  postpone();
  if (plan_.port != 0 && !agreement_) {
    if (Result<std::unique_ptr<Agreement>> agreement = Agreement::start(plan_, launch))
      agreement_ = std::move(*agreement);
  }
  abandon(error);
}

void Group::forget(bool on_request) {
  if (phase_ != GroupPhase::lost) return;
  abandon(error_);
  if (on_request) phase_ = GroupPhase::evicted;
}

void Group::signal(int number) const {
  for (const Rank& rank : ranks_) {
    if (rank.process && !rank.ended) rank.process->signal(number);
  }
}

bool Group::running() const {
  return std::any_of(ranks_.begin(), ranks_.end(),
                     [](const Rank& rank) { return rank.process && !rank.ended && !rank.process->ended(); });
}

std::string Group::fingerprint() const {
  for (const Rank& rank : ranks_) {
    if (!rank.record.fingerprint.empty()) return rank.record.fingerprint;
  }
  return plan_.fingerprint;
}

std::vector<RankStatus> Group::records() const {
  std::vector<RankStatus> records;
  for (const Rank& rank : ranks_) records.push_back(rank.record);
  return records;
}

std::vector<std::string> Group::sockets() const {
  std::vector<std::string> paths;
  for (const Rank& rank : ranks_) {
    if (!rank.record.socket.empty()) paths.push_back(rank.record.socket);
  }
  return paths;
}

}  // namespace wcache

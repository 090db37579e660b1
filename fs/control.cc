#include "fs/control.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <exception>
#include <span>
#include <utility>

#include "daemon/holders.h"
#include "ipc/client.h"

namespace wcache {
namespace {

constexpr std::size_t kMaxCallers = 1000;
constexpr std::chrono::seconds kIdle{60};
constexpr std::chrono::milliseconds kSendWait{500};
constexpr std::chrono::seconds kPollWait{5};

bool say(Connection& connection, std::uint32_t request, Body body) {
  return send_message(connection, {request, std::move(body)}, deadline_in(kSendWait)).has_value();
}

}  // namespace

Result<std::unique_ptr<Control>> Control::start(SocketLock lock, Handlers handlers, spdlog::logger& log) {
  Fd stop = Fd::adopt(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop) return fail_errno("eventfd", errno);
  Result<Listener> listener = Listener::bind(std::move(lock));
  if (!listener) return fail(std::move(listener.error()));
  std::unique_ptr<Control> control(
      new Control(std::move(*listener), std::move(handlers), std::move(stop), log));
  control->thread_ = std::thread([self = control.get()] { self->run(); });
  return control;
}

Control::Control(Listener listener, Handlers handlers, Fd stop, spdlog::logger& log)
    : listener_(std::move(listener)), handlers_(std::move(handlers)), stop_(std::move(stop)), log_(log) {}

Control::~Control() {
  const std::uint64_t one = 1;
  if (write(stop_.get(), &one, sizeof one) != sizeof one) log_.error("eventfd: errno {}", errno);
  thread_.join();
}

void Control::run() {
  for (;;) {
    std::vector<pollfd> fds{{stop_.get(), POLLIN, 0}, {listener_.fd(), POLLIN, 0}};
    for (const Caller& caller : callers_) fds.push_back({caller.connection.fd(), POLLIN, 0});
    const int ready =
        poll(fds.data(), fds.size(), static_cast<int>(std::chrono::milliseconds(kPollWait).count()));
    if (ready < 0 && errno != EINTR) log_.error("poll: errno {}", errno);
    if (fds[0].revents != 0) return;
    std::vector<Caller> kept;
    for (std::size_t i = 0; i < callers_.size(); ++i) {
      const bool asks = ready > 0 && fds[i + 2].revents != 0;
      const bool waits =
          !callers_[i].leases.empty() || std::chrono::steady_clock::now() < callers_[i].idle_until;
      if (asks ? serve(callers_[i]) : waits) kept.push_back(std::move(callers_[i]));
    }
    callers_ = std::move(kept);
    if (ready > 0 && fds[1].revents != 0) accept_callers();
  }
}

void Control::accept_callers() {
  for (;;) {
    Result<std::optional<Connection>> connection = listener_.accept();
    if (!connection) {
      log_.warn("{}", connection.error().message);
      return;
    }
    if (!*connection) return;
    if (callers_.size() < kMaxCallers) callers_.push_back({std::move(**connection), deadline_in(kIdle)});
  }
}

/// Whether the caller is kept.
bool Control::serve(Caller& caller) {
  try {
    Result<std::optional<Message>> message =
        caller.connection.receive(MessageLimits{}, std::chrono::steady_clock::now());
    if (!message) return message.error().reason == Reason::timeout;
    if (!*message) return false;
    Result<Envelope> request = decode((*message)->bytes);
    if (!request) {
      log_.warn("wcachefs.sock: {}", request.error().message);
      return false;
    }
    caller.idle_until = deadline_in(kIdle);
    return answer(caller, *request);
  } catch (const std::exception& e) {
    log_.error("wcachefs.sock: {}", e.what());
    return false;
  }
}

bool Control::answer(Caller& caller, const Envelope& request) {
  const auto send = [&](Body body) { return say(caller.connection, request.id, std::move(body)); };
  if (const auto* hello = std::get_if<Hello>(&request.body)) return greet(caller, request.id, *hello);
  if (!caller.hello) return false;
  if (std::holds_alternative<StatusRequest>(request.body)) {
    for (StatusReply& page : pages_of(handlers_.status()))
      if (!send(std::move(page))) return false;
    return true;
  }
  if (const auto* which = std::get_if<AttachRequest>(&request.body))
    return attach(caller, request.id, *which);
  if (const auto* which = std::get_if<SlabRequest>(&request.body)) return slab(caller, request.id, *which);
  if (const auto* eviction = std::get_if<EvictRequest>(&request.body)) {
    Status evicted = evict(*eviction);
    return evicted ? send(EvictReply{}) : send(ErrorReply{std::move(evicted.error())});
  }
  if (const auto* belonging = std::get_if<PairRequest>(&request.body)) {
    Status paired = pair(*belonging);
    return paired ? send(PairReply{}) : send(ErrorReply{std::move(paired.error())});
  }
  return send(
      ErrorReply{Error{Reason::invalid, "wcachefs does not answer " + std::string(name_of(request.body))}});
}

bool Control::greet(Caller& caller, std::uint32_t request, const Hello& hello) {
  Result<std::uint16_t> version = negotiate(hello);
  if (!version) {
    say(caller.connection, request, ErrorReply{std::move(version.error())});
    return false;
  }
  caller.hello = hello;
  return say(caller.connection, request, HelloReply{*version, static_cast<std::int32_t>(getpid())});
}

/// What an orphaned entry's daemon would have handed out; the caller holds the entry from now on.
Result<std::shared_ptr<const Part>> Control::hold(Caller& caller, const AttachRequest& which) const {
  const Result<Role> role = role_from_string(which.role);
  const std::optional<Digest> digest = digest_from_hex(which.fingerprint);
  if (!role || !digest) return fail(Reason::invalid, "an attach to wcachefs that names no orphaned entry");
  const Result<Peer> peer = caller.connection.peer();
  if (!peer) return fail(peer.error());
  std::string command = command_of("/proc", peer->pid);
  if (command.empty()) command = caller.hello->command;
  Result<Groups::Orphan> orphan =
      handlers_.hold_orphan(*role, Fingerprint{*digest}, which.rank, {peer->pid, std::move(command), 0});
  if (!orphan) return fail(std::move(orphan.error()));
  caller.leases[which.role + which.fingerprint + std::to_string(which.rank)] = std::move(orphan->lease);
  return std::move(orphan->part);
}

bool Control::attach(Caller& caller, std::uint32_t request, const AttachRequest& which) {
  const Result<std::shared_ptr<const Part>> part = hold(caller, which);
  if (!part) return say(caller.connection, request, ErrorReply{part.error()});
  AttachReply reply{0, (*part)->manifest_bytes().size()};
  reply.slabs = static_cast<std::uint32_t>((*part)->slabs().size());
  reply.instance = (*part)->instance();
  const std::vector<int> fds = (*part)->descriptors();
  return send_attachment(caller.connection, request, std::move(reply), fds, deadline_in(kSendWait))
      .has_value();
}

bool Control::slab(Caller& caller, std::uint32_t request, const SlabRequest& which) {
  const auto refuse = [&](Error error) {
    return say(caller.connection, request, ErrorReply{std::move(error)});
  };
  const Result<std::shared_ptr<const Part>> part = hold(caller, {which.role, which.fingerprint, which.rank});
  if (!part) return refuse(part.error());
  if ((*part)->slabs().empty()) return refuse({Reason::invalid, "this entry has no slabs with descriptors"});
  if (which.slab >= (*part)->slabs().size())
    return refuse({Reason::not_found, "no slab " + std::to_string(which.slab)});
  const int fd = (*part)->slabs()[which.slab].get();
  return send_message(caller.connection, {request, SlabReply{(*part)->manifest().slab_nbytes(which.slab)}},
                      deadline_in(kSendWait), std::span(&fd, 1))
      .has_value();
}

Status Control::evict(const EvictRequest& request) const {
  const Result<Role> role = role_from_string(request.role);
  const std::optional<Digest> digest = digest_from_hex(request.fingerprint);
  if (!role || !digest) return fail(Reason::invalid, "an evict that names no entry");
  return handlers_.evict_orphan(*role, Fingerprint{*digest});
}

Status Control::pair(const PairRequest& request) const {
  const std::optional<Digest> target = digest_from_hex(request.target);
  const std::optional<Digest> draft = digest_from_hex(request.draft);
  if (!target || !draft) return fail(Reason::invalid, "a pair that does not name two fingerprints");
  handlers_.pair({*target}, {*draft});
  return {};
}

}  // namespace wcache

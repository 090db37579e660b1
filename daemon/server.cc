#include "daemon/server.h"

#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <variant>

#include "daemon/verify.h"
#include "ipc/message.h"

namespace wcache {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kMaxSessions = 1000;
constexpr std::chrono::seconds kHelloWait{5};
constexpr std::chrono::milliseconds kAcceptPause{200};
/// Who asks for a status waits two seconds.
constexpr std::chrono::milliseconds kMountAnswerWait{1000};
constexpr std::chrono::seconds kWithdrawWait{10};
constexpr std::chrono::seconds kForcedWithdrawWait{2};
constexpr std::chrono::milliseconds kScanMaxAge{500};
constexpr std::size_t kCopyThreads = 4;

double unix_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

MappingSearch search_for(const StoredEntry& entry) {
  MappingSearch search;
  for (const Fd& image : entry.memory.images) {
    struct stat st {};
    if (fstat(image.get(), &st) == 0) search.images.emplace(st.st_dev, st.st_ino);
  }
  search.path_part = "/" + std::string(to_string(entry.plan.role)) + "/" + to_hex(entry.fingerprint) + "/";
  search.except.insert(getpid());
  return search;
}

/// The connection is a lease from now on.
void hold(Session& session) {
  if (session.attached) return;
  session.attached = true;
  session.attached_since = unix_now();
}

Result<std::uint64_t> slab_nbytes(const StoredEntry& entry, std::size_t slab) {
  const Result<Mapping> bytes =
      Mapping::map(entry.memory.manifest.get(), entry.manifest_nbytes, PROT_READ, MAP_SHARED, "the manifest");
  if (!bytes) return fail(bytes.error());
  const Result<ManifestView> manifest = ManifestView::open(bytes->bytes());
  if (!manifest) return fail(manifest.error());
  return manifest->slab_nbytes(slab);
}

void merge(std::vector<Holder>& holders, const std::vector<Holder>& more) {
  for (const Holder& holder : more) {
    const auto same = [&](const Holder& other) { return other.pid == holder.pid; };
    if (std::none_of(holders.begin(), holders.end(), same)) holders.push_back(holder);
  }
}

Error being_evicted() {
  return Error{Reason::not_ready, "the entry is being evicted", "try again"};
}

Error held_by(const std::vector<Holder>& holders) {
  std::string who;
  for (const Holder& holder : holders) {
    if (!who.empty()) who += ", ";
    who += "pid " + std::to_string(holder.pid) + (holder.command.empty() ? "" : " (" + holder.command + ")");
    if (who.size() > 1000) {
      who += ", ...";
      break;
    }
  }
  return Error{Reason::busy, "held by " + who, "stop the engine that uses it, then try again"};
}

}  // namespace

Server::Server(EventLoop& loop, Listener listener, const StoredEntry& entry, Events events,
               spdlog::logger& log, std::string proc)
    : loop_(loop),
      listener_(std::move(listener)),
      entry_(entry),
      events_(std::move(events)),
      log_(log),
      proc_(std::move(proc)) {}

Server::~Server() {
  verify_stop_.request_stop();
  if (entry_.device)
    entry_.device->stop_reads();  // the threads that end here may wait for a device that hangs
  if (listener_) loop_.unwatch(listener_->fd());
}

Status Server::start() {
  return loop_.watch(listener_->fd(), EPOLLIN, [this](std::uint32_t) { accept(); });
}

void Server::accept() {
  Result<std::optional<Connection>> connection = listener_->accept();
  if (!connection) {
    log_.warn("{}", connection.error().message);
    loop_.change(listener_->fd(), 0);
    loop_.at(deadline_in(kAcceptPause), [this] {
      if (listener_) loop_.change(listener_->fd(), EPOLLIN);
    });
    return;
  }
  if (!*connection || sessions_.size() >= kMaxSessions) return;
  const Result<Peer> peer = (*connection)->peer();
  if (!peer) return;
  const SessionId id = ++last_session_;
  auto session = std::make_unique<Session>(
      loop_, std::move(**connection), *peer,
      Session::Events{[this, id](Session& from, Envelope envelope, std::optional<Fd> fd) {
                        request(id, from, std::move(envelope), std::move(fd));
                      },
                      [this, id](Session& from) {
                        log_.debug("connection of pid {} ended: {}", from.peer().pid, from.end_reason());
                        loop_.post([this, id] { sessions_.erase(id); });
                        std::erase_if(verify_waiters_,
                                      [id](const Asker& waiter) { return waiter.session == id; });
                        if (verify_waiters_.empty()) verify_stop_.request_stop();
                        if (copier_) copier_->drop(id);
                      }});
  if (!session->start()) return;
  sessions_.emplace(id, std::move(session));
  loop_.at(deadline_in(kHelloWait), [this, id] {
    const auto found = sessions_.find(id);
    if (found != sessions_.end() && !found->second->hello) found->second->end("said no hello");
  });
}

void Server::reply(const Asker& asker, Body body) {
  const auto found = sessions_.find(asker.session);
  if (found != sessions_.end()) found->second->send(Envelope{asker.request, std::move(body)});
}

void Server::request(SessionId id, Session& session, Envelope envelope, std::optional<Fd> fd) {
  const Asker asker{id, envelope.id};
  const auto* wanted = std::get_if<CopyRequest>(&envelope.body);
  if (fd && wanted == nullptr)
    return session.end("sent a descriptor with a " + std::string(name_of(envelope.body)));
  if (!session.hello) return greet(session, envelope.id, envelope.body);
  if (std::holds_alternative<StatusRequest>(envelope.body)) return status(asker);
  if (std::holds_alternative<AttachRequest>(envelope.body)) return attach(session, envelope.id);
  if (const auto* which = std::get_if<SlabRequest>(&envelope.body)) return slab(session, envelope.id, *which);
  if (wanted != nullptr) return copy(asker, session, *wanted, std::move(fd));
  if (std::holds_alternative<VerifyRequest>(envelope.body)) return verify(asker);
  if (std::holds_alternative<EvictRequest>(envelope.body)) return evict(asker);
  reply(asker, ErrorReply{Error{Reason::invalid, "no request: " + std::string(name_of(envelope.body))}});
  session.end("sent a " + std::string(name_of(envelope.body)));
}

void Server::greet(Session& session, std::uint32_t request, const Body& body) {
  const auto* hello = std::get_if<Hello>(&body);
  const Result<std::uint16_t> version =
      hello != nullptr ? negotiate(*hello) : fail(Reason::invalid, "the first message is no Hello");
  if (!version) {
    session.send(Envelope{request, ErrorReply{version.error()}});
    return session.end(version.error().message);
  }
  session.hello = *hello;
  session.send(Envelope{request, HelloReply{*version, getpid()}});
}

void Server::attach(Session& session, std::uint32_t request) {
  if (eviction_) return session.send(Envelope{request, ErrorReply{being_evicted()}});
  std::vector<int> fds{entry_.memory.manifest.get()};
  for (const Fd& image : entry_.memory.images)
    if (image) fds.push_back(image.get());
  AttachReply reply{0, entry_.manifest_nbytes};
  if (entry_.device) {
    for (const Fd& slab : entry_.device->slabs()) fds.push_back(slab.get());
    reply.slabs = static_cast<std::uint32_t>(entry_.device->slabs().size());
    reply.handles.assign(entry_.device->handles().begin(), entry_.device->handles().end());
    reply.instance = entry_.device->instance();
  }
  reply.descriptors = static_cast<std::uint32_t>(fds.size());
  hold(session);
  session.send(Envelope{request, std::move(reply)});
  for (const Descriptors& page : descriptor_pages(fds.size())) {
    const auto part = std::span(fds).subspan(page.first, page.count);
    session.send(Envelope{request, page}, std::vector<int>(part.begin(), part.end()));
  }
}

void Server::slab(Session& session, std::uint32_t request, const SlabRequest& which) {
  const auto refuse = [&](Error error) { session.send(Envelope{request, ErrorReply{std::move(error)}}); };
  if (eviction_) return refuse(being_evicted());
  if (!entry_.device || entry_.device->ipc() != DeviceIpc::vmm)
    return refuse(Error{Reason::invalid, "this entry has no slabs with descriptors"});
  if (which.slab >= entry_.device->slabs().size())
    return refuse(Error{Reason::not_found, "no slab " + std::to_string(which.slab) + ": the entry has " +
                                               std::to_string(entry_.device->slabs().size())});
  const Result<std::uint64_t> nbytes = slab_nbytes(entry_, which.slab);
  if (!nbytes) return refuse(nbytes.error());
  hold(session);
  session.send(Envelope{request, SlabReply{*nbytes}}, {entry_.device->slabs()[which.slab].get()});
}

Status Server::check_copy(const Session& session, const CopyRequest& which,
                          const std::optional<Fd>& into) const {
  const Purpose purpose = session.hello->purpose;
  if (purpose != Purpose::mount && purpose != Purpose::client)
    return fail(Reason::denied, "only mounts and clients may have bytes copied");
  if (!into) return fail(Reason::invalid, "a copy without a descriptor to copy to");
  if (!entry_.device || which.file >= entry_.plan.images.size() || entry_.memory.images[which.file])
    return fail(Reason::invalid,
                "file " + std::to_string(which.file) + " of the manifest is not on a device");
  const std::uint64_t nbytes = entry_.plan.images[which.file].nbytes;
  if (which.nbytes > kMaxCopyNbytes || which.offset > nbytes || which.nbytes > nbytes - which.offset)
    return fail(Reason::invalid, "no " + std::to_string(which.nbytes) + " bytes from " +
                                     std::to_string(which.offset) + " on can be copied of a file of " +
                                     std::to_string(nbytes));
  return check_copy_target(into->get());
}

void Server::copy(const Asker& asker, Session& session, const CopyRequest& which, std::optional<Fd> into) {
  if (Status possible = check_copy(session, which, into); !possible)
    return reply(asker, ErrorReply{std::move(possible.error())});
  if (!copier_) copier_.emplace(*entry_.device, kCopyThreads);
  const auto done = [this, asker, nbytes = which.nbytes](const Status& copied) {
    loop_.post([this, asker, nbytes, copied] {
      const auto found = sessions_.find(asker.session);
      if (found == sessions_.end()) return;
      if (!copied) log_.warn("bytes were not copied from the device: {}", copied.error().message);
      reply(asker, copied ? Body(CopyReply{nbytes}) : Body(ErrorReply{copied.error()}));
      found->second->release_requests();
    });
  };
  // The answer comes over the loop: not before the session is held.
  Status begun =
      copier_->run({asker.session, which.file, which.offset, which.nbytes, std::move(*into), done});
  if (!begun) return reply(asker, ErrorReply{std::move(begun.error())});
  session.hold_requests();
}

void Server::status(const Asker& asker) {
  survey(kScanMaxAge, [this, asker](const Survey& found) {
    StatusReply status;
    status.pid = getpid();
    RankStatus& rank = status.ranks.emplace_back(events_.status());
    rank.holders = found.holders;
    rank.holders_complete = found.complete && found.mounts_answered;
    for (StatusReply& page : pages_of(std::move(status))) reply(asker, std::move(page));
  });
}

// ---- verify: one at a time; who asks meanwhile gets the answer of the one that runs
// ---------------------------------

void Server::verify(const Asker& asker) {
  verify_waiters_.push_back(asker);
  if (verify_waiters_.size() > 1) return;
  verify_stop_ = std::stop_source();
  const std::uint64_t run = ++verify_run_;
  verifier_.run([this, run, stop = verify_stop_.get_token()](const std::stop_token&) {
    const auto progress = [this, run](std::uint64_t done, std::uint64_t total) {
      loop_.post([this, run, step = VerifyProgress{done, total}] {
        if (run != verify_run_) return;
        for (const Asker& waiter : verify_waiters_) {
          const auto found = sessions_.find(waiter.session);
          if (found != sessions_.end() && found->second->idle()) reply(waiter, step);
        }
      });
    };
    Result<VerifyReply> result = verify_entry(entry_, progress, stop);
    loop_.post([this, run, result = std::move(result)] { verified(run, result); });
  });
}

void Server::verified(std::uint64_t run, const Result<VerifyReply>& result) {
  if (run != verify_run_) return;  // nobody waited for it any more, and another one has begun
  const std::vector<Asker> waiters = std::exchange(verify_waiters_, {});
  if (result && !result->ok)
    log_.error("{} differs from its digest: expected {}, found {}", result->file, result->expected,
               result->found);
  for (const Asker& waiter : waiters)
    reply(waiter, result ? Body(*result) : Body(ErrorReply{result.error()}));
}

// ---- holders
// --------------------------------------------------------------------------------------------------------

std::vector<Server::SessionId> Server::mounts() const {
  std::vector<SessionId> ids;
  for (const auto& [id, session] : sessions_)
    if (!session->ended() && session->attached && session->hello->purpose == Purpose::mount)
      ids.push_back(id);
  return ids;
}

void Server::scan(std::chrono::milliseconds max_age, std::function<void(const MappingScan&)> done) {
  if (last_scan_at_ && std::chrono::steady_clock::now() - *last_scan_at_ < max_age) return done(last_scan_);
  scan_waiters_.push_back(std::move(done));
  MappingSearch search = search_for(entry_);
  for (const SessionId id : mounts()) search.except.insert(sessions_.at(id)->peer().pid);
  scanner_.run([this, search = std::move(search), waiting = scan_waiters_.size()](const std::stop_token&) {
    MappingScan found = scan_mappings(proc_, search);
    loop_.post([this, waiting, found = std::move(found)]() mutable {
      last_scan_ = std::move(found);
      last_scan_at_ = std::chrono::steady_clock::now();
      // Who came after this scan began waits for the next one.
      const auto end =
          scan_waiters_.begin() + static_cast<std::ptrdiff_t>(std::min(waiting, scan_waiters_.size()));
      std::vector<std::function<void(const MappingScan&)>> served(
          std::make_move_iterator(scan_waiters_.begin()), std::make_move_iterator(end));
      scan_waiters_.erase(scan_waiters_.begin(), end);
      for (const auto& waiter : served) waiter(last_scan_);
    });
  });
}

void Server::ask_mounts(const Body& question, std::chrono::milliseconds wait,
                        std::function<void(std::map<SessionId, std::optional<Body>>)> done) {
  struct Round {
    std::map<SessionId, std::optional<Body>> answers;
    std::size_t expected = 0;
    std::function<void(std::map<SessionId, std::optional<Body>>)> done;
  };
  const std::vector<SessionId> asked = mounts();
  if (asked.empty()) return done({});
  const auto round = std::make_shared<Round>(Round{{}, asked.size(), std::move(done)});
  for (const SessionId id : asked)
    sessions_.at(id)->ask(question, deadline_in(wait), [round, id](std::optional<Body> body) {
      round->answers.emplace(id, std::move(body));
      if (round->answers.size() == round->expected) round->done(std::move(round->answers));
    });
}

void Server::survey(std::chrono::milliseconds max_age, Surveyed done) {
  ask_mounts(
      HoldersRequest{}, kMountAnswerWait,
      [this, max_age, done = std::move(done)](const std::map<SessionId, std::optional<Body>>& answers) {
        Survey found;
        for (const auto& [id, session] : sessions_) {
          if (session->ended() || !session->attached || session->hello->purpose == Purpose::mount) continue;
          std::string command = command_of(proc_, session->peer().pid);
          if (command.empty()) command = session->hello->command;
          merge(found.holders, {Holder{session->peer().pid, command, session->attached_since}});
        }
        for (const auto& [id, body] : answers) {
          const auto* answer = body ? std::get_if<HoldersReply>(&*body) : nullptr;
          if (answer != nullptr) merge(found.holders, answer->holders);
          if (answer == nullptr && sessions_.contains(id)) found.mounts_answered = false;
        }
        scan(max_age, [found, done](const MappingScan& mappings) mutable {
          merge(found.holders, mappings.holders);
          found.complete = mappings.complete;
          std::sort(found.holders.begin(), found.holders.end(),
                    [](const Holder& a, const Holder& b) { return a.pid < b.pid; });
          done(std::move(found));
        });
      });
}

// ---- the end
// --------------------------------------------------------------------------------------------------------

void Server::evict(const Asker& asker) {
  if (eviction_)
    return reply(asker, ErrorReply{Error{Reason::not_ready, "the entry is being evicted already"}});
  eviction_ = asker;
  survey(0ms, [this](const Survey& found) { evict_unless_held(found); });
}

void Server::evict_unless_held(const Survey& found) {
  if (!found.holders.empty()) return end_eviction(held_by(found.holders));
  if (!found.mounts_answered)
    return end_eviction(Error{Reason::timeout, "the mount does not say who holds the entry", "try again"});
  ask_mounts(WithdrawRequest{false}, kWithdrawWait,
             [this](const std::map<SessionId, std::optional<Body>>& answers) {
               std::optional<Error> refusal;
               for (const auto& [id, body] : answers) {
                 const auto* answer = body ? std::get_if<WithdrawReply>(&*body) : nullptr;
                 if (answer != nullptr && answer->withdrawn) continue;
                 refusal = answer == nullptr
                               ? Error{Reason::timeout, "the mount did not withdraw the entry", "try again"}
                               : held_by(answer->holders);
               }
               // A mount that took the directory away for nothing finds the socket again and shows it again.
               if (refusal) {
                 for (const auto& [id, body] : answers) {
                   const auto* answer = body ? std::get_if<WithdrawReply>(&*body) : nullptr;
                   const bool took_away = answer == nullptr || answer->withdrawn;
                   if (took_away && sessions_.contains(id)) sessions_.at(id)->end("the eviction was refused");
                 }
               }
               end_eviction(std::move(refusal));
             });
}

void Server::end_eviction(std::optional<Error> refusal) {
  const Asker asker = *std::exchange(eviction_, std::nullopt);
  if (refusal) {
    log_.info("not evicted: {}", refusal->message);
    return reply(asker, ErrorReply{std::move(*refusal)});
  }
  loop_.unwatch(listener_->fd());
  listener_.reset();
  reply(asker, EvictReply{});
  events_.evicted();
}

void Server::withdraw(std::function<void()> done) {
  if (listener_) loop_.unwatch(listener_->fd());
  listener_.reset();
  ask_mounts(WithdrawRequest{true}, kForcedWithdrawWait,
             [done = std::move(done)](const std::map<SessionId, std::optional<Body>>&) { done(); });
}

}  // namespace wcache

#pragma once

#include <spdlog/logger.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "core/fd.h"
#include "daemon/copier.h"
#include "daemon/event_loop.h"
#include "daemon/holders.h"
#include "daemon/session.h"
#include "daemon/store.h"
#include "daemon/worker.h"
#include "ipc/listener.h"
#include "ipc/protocol.h"

namespace wcache {

/// The public socket of one entry: hands its memory out, tells its state and who holds it, hashes it again,
/// drops it, copies bytes of it from a device. On the loop's thread, but for threads of its own: one reads
/// /proc, one hashes, a few copy. Must not outlive the loop, and the loop must not run on after it.
class Server {
 public:
  struct Events {
    std::function<RankStatus()> status;  ///< all but the holders
    std::function<void()> evicted;       ///< the entry was dropped on request, and who asked has been told
  };

  /// Borrows loop, entry and log. `proc` is where the kernel shows processes.
  Server(EventLoop& loop, Listener listener, const StoredEntry& entry, Events events, spdlog::logger& log,
         std::string proc = "/proc");
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  Status start();

  /// The end, whoever holds it: nobody can connect any more, mounts take the directory away; `done` when they
  /// have, or after two seconds.
  void withdraw(std::function<void()> done);

 private:
  using SessionId = std::uint64_t;
  struct Asker {
    SessionId session;
    std::uint32_t request;
  };
  struct Survey {
    std::vector<Holder> holders;  ///< sorted by pid, one a process
    bool complete = true;         ///< every process's maps could be read
    bool mounts_answered = true;
  };
  using Surveyed = std::function<void(Survey)>;

  void accept();
  void request(SessionId id, Session& session, Envelope envelope, std::optional<Fd> fd);
  void greet(Session& session, std::uint32_t request, const Body& body);
  void attach(Session& session, std::uint32_t request);
  void slab(Session& session, std::uint32_t request, const SlabRequest& which);
  void copy(const Asker& asker, Session& session, const CopyRequest& which, std::optional<Fd> into);
  Status check_copy(const Session& session, const CopyRequest& which, const std::optional<Fd>& into) const;
  void status(const Asker& asker);
  void verify(const Asker& asker);
  void verified(std::uint64_t run, const Result<VerifyReply>& reply);
  void evict(const Asker& asker);
  void evict_unless_held(const Survey& survey);
  void end_eviction(std::optional<Error> refusal);
  void reply(const Asker& asker, Body body);

  std::vector<SessionId> mounts() const;
  void survey(std::chrono::milliseconds max_age, Surveyed done);
  void scan(std::chrono::milliseconds max_age, std::function<void(const MappingScan&)> done);
  void ask_mounts(const Body& question, std::chrono::milliseconds wait,
                  std::function<void(std::map<SessionId, std::optional<Body>>)> done);

  EventLoop& loop_;
  std::optional<Listener> listener_;
  const StoredEntry& entry_;
  Events events_;
  spdlog::logger& log_;
  std::string proc_;

  std::map<SessionId, std::unique_ptr<Session>> sessions_;
  SessionId last_session_ = 0;
  std::optional<Asker> eviction_;  ///< who asked; while it lasts nobody attaches

  MappingScan last_scan_;
  std::optional<Deadline> last_scan_at_;
  std::vector<std::function<void(const MappingScan&)>> scan_waiters_;

  std::vector<Asker> verify_waiters_;
  std::stop_source verify_stop_;
  std::uint64_t verify_run_ = 0;  ///< number of the last one begun

  Worker scanner_;
  Worker verifier_;
  std::optional<Copier> copier_;  // last: the workers end before what they use
};

}  // namespace wcache

#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/fd.h"
#include "daemon/event_loop.h"
#include "ipc/connection.h"
#include "ipc/protocol.h"

namespace wcache {

/// One connection of a daemon's public socket, on the loop's thread: whole messages in, queued messages out,
/// questions of the daemon's own with a deadline. A peer gets no further message read while an answer to it
/// is still queued or awaited (`hold_requests`), so no peer costs more than a bounded amount of memory; one
/// that does not read its answers for 30 seconds is dropped.
class Session {
 public:
  struct Events {
    /// Everything that is no answer to a question; at most one descriptor comes with it.
    std::function<void(Session&, Envelope, std::optional<Fd>)> request;
    std::function<void(Session&)> ended;  ///< once; the session may be destroyed after it returned
  };
  /// nullopt: no answer in time, an ErrorReply, or the peer is gone.
  using Answered = std::function<void(std::optional<Body>)>;

  /// Borrows the loop.
  Session(EventLoop& loop, Connection connection, Peer peer, Events events);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  Status start();

  /// `fds` are borrowed until they are sent: they belong to the entry, which outlives every session.
  void send(const Envelope& envelope, std::vector<int> fds = {});

  /// Reads nothing more until as many calls of `release_requests` have followed: the answer is being made
  /// elsewhere. That the peer hangs up is noticed all the same.
  void hold_requests();
  void release_requests();

  /// Sends a question and calls `answered` exactly once; from within this call when the peer is found gone.
  void ask(Body body, Deadline deadline, Answered answered);

  /// Ends it. Answers that are queued are dropped; `why` goes into end_reason().
  void end(std::string why);

  bool ended() const { return !connection_; }
  bool idle() const { return outbox_.empty(); }
  const std::string& end_reason() const { return end_reason_; }
  const Peer& peer() const { return peer_; }

  // What the server notes about the peer.
  std::optional<Hello> hello;
  bool attached = false;
  double attached_since = 0;  ///< Unix time

 private:
  struct Outgoing {
    std::vector<std::byte> bytes;
    std::vector<int> fds;
  };
  struct Question {
    Answered answered;
    EventLoop::TimerId timer;
  };

  void ready(std::uint32_t events);
  void receive();
  void flush();
  void listen();
  bool take_answer(Envelope& envelope);
  void answer(std::uint32_t id, std::optional<Body> body);

  EventLoop& loop_;
  Connection connection_;
  Peer peer_;
  Events events_;
  std::deque<Outgoing> outbox_;
  std::size_t held_ = 0;  // calls of hold_requests without their end
  std::optional<EventLoop::TimerId> retry_;
  Deadline give_up_;  // while the outbox is not empty
  std::map<std::uint32_t, Question> questions_;
  std::uint32_t last_question_ = 0;
  std::string end_reason_;
};

}  // namespace wcache

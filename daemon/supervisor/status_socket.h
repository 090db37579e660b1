#pragma once

#include <poll.h>

#include <functional>
#include <vector>

#include "core/result.h"
#include "ipc/connection.h"
#include "ipc/deadline.h"
#include "ipc/listener.h"
#include "ipc/protocol.h"

namespace wcache {

/// Answers StatusRequests at a socket from within a loop of one thread. Never blocks: who does not read its
/// answer, or says nothing for ten seconds, is hung up on.
class StatusSocket {
 public:
  explicit StatusSocket(Listener listener) : listener_(std::move(listener)) {}

  /// Adds what poll(2) should watch.
  void watch(std::vector<pollfd>& items) const;

  /// Accepts and answers what is there; `status` makes the answer.
  void turn(const std::function<StatusReply()>& status);

 private:
  struct Caller {
    Connection connection;
    Deadline deadline;
  };
  static bool serve(Caller& caller, const std::function<StatusReply()>& status);

  Listener listener_;
  std::vector<Caller> callers_;
};

}  // namespace wcache

#pragma once

#include <spdlog/logger.h>

#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "core/fd.h"
#include "core/result.h"
#include "fs/groups.h"
#include "ipc/connection.h"
#include "ipc/deadline.h"
#include "ipc/listener.h"
#include "ipc/protocol.h"

namespace wcache {

/// wcachefs's own socket: answers status. One thread; who says nothing holds up nobody.
class Control {
 public:
  /// `status` may be called at any time until the object goes.
  static Result<std::unique_ptr<Control>> start(SocketLock lock, std::function<StatusReply()> status,
                                                spdlog::logger& log);
  ~Control();

 private:
  struct Caller {
    Connection connection;
    Deadline idle_until;
    bool greeted = false;
  };
  Control(Listener listener, std::function<StatusReply()> status, Fd stop, spdlog::logger& log);
  void run();
  void accept_callers();
  bool serve(Caller& caller);
  bool answer(Caller& caller, const Envelope& request);

  Listener listener_;
  std::function<StatusReply()> status_;
  Fd stop_;  // eventfd
  spdlog::logger& log_;
  std::vector<Caller> callers_;  // of the thread only
  std::thread thread_;
};

}  // namespace wcache

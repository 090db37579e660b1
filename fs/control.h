#pragma once

#include <spdlog/logger.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
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

/// wcachefs's own socket: answers status, hands orphaned entries out and drops them, notes which belong
/// together. One thread; who says nothing holds up nobody.
class Control {
 public:
  /// What it asks of the mount, at any time until the object goes.
  struct Handlers {
    std::function<StatusReply()> status;
    std::function<Status(Role role, const Fingerprint& fingerprint)> evict_orphan;
    std::function<Result<Groups::Orphan>(Role role, const Fingerprint& fingerprint, std::uint32_t rank,
                                         Holder holder)>
        hold_orphan;
    std::function<void(const Fingerprint& target, const Fingerprint& draft)> pair;
  };
  static Result<std::unique_ptr<Control>> start(SocketLock lock, Handlers handlers, spdlog::logger& log);
  ~Control();

 private:
  struct Caller {
    Connection connection;
    Deadline idle_until;
    std::optional<Hello> hello = std::nullopt;
    std::map<std::string, std::shared_ptr<const void>> leases = {};  ///< by what is held
  };
  Control(Listener listener, Handlers handlers, Fd stop, spdlog::logger& log);
  void run();
  void accept_callers();
  bool serve(Caller& caller);
  bool answer(Caller& caller, const Envelope& request);
  bool greet(Caller& caller, std::uint32_t request, const Hello& hello);
  bool attach(Caller& caller, std::uint32_t request, const AttachRequest& which);
  bool slab(Caller& caller, std::uint32_t request, const SlabRequest& which);
  Result<std::shared_ptr<const Part>> hold(Caller& caller, const AttachRequest& which) const;
  Status evict(const EvictRequest& request) const;
  Status pair(const PairRequest& request) const;

  Listener listener_;
  Handlers handlers_;
  Fd stop_;  // eventfd
  spdlog::logger& log_;
  std::vector<Caller> callers_;  // of the thread only
  std::thread thread_;
};

}  // namespace wcache

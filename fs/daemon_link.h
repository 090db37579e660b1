#pragma once

#include <spdlog/logger.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "core/fd.h"
#include "core/result.h"
#include "fs/groups.h"
#include "ipc/client.h"

namespace wcache {

/// One daemon: connects to its socket, takes over what it serves, and answers its questions until it goes. On
/// a thread of its own, so that a silent daemon holds up nobody.
class DaemonLink {
 public:
  /// `groups` and `log` are borrowed; `wake` is an eventfd that is written to when the link has ended.
  DaemonLink(std::string socket, Groups::Link number, Groups& groups, int wake, spdlog::logger& log);
  ~DaemonLink();  ///< ends it; what it served is then orphaned, unless it was withdrawn

  bool ended() const { return ended_; }
  /// Whether a daemon was there and handed over what it serves.
  bool joined() const { return joined_; }

 private:
  void run();
  Status serve(Client& client);
  Status join(Client& client);
  Status wait_readable(int fd) const;
  Body answer(const Body& request);

  const std::string socket_;
  const Groups::Link number_;
  Groups& groups_;
  const int wake_;
  spdlog::logger& log_;
  Fd stop_;  // eventfd
  std::atomic<bool> ended_ = false;
  std::atomic<bool> joined_ = false;
  std::thread thread_;
};

}  // namespace wcache

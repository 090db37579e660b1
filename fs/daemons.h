#pragma once

#include <spdlog/logger.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "core/fd.h"
#include "core/result.h"
#include "fs/daemon_link.h"
#include "fs/groups.h"
#include "ipc/run_dir.h"

namespace wcache {

/// Finds the daemons of a run directory by their sockets, as they come and go, and keeps one DaemonLink to
/// each.
class Daemons {
 public:
  /// `groups` and `log` are borrowed.
  static Result<std::unique_ptr<Daemons>> start(RunDir run_dir, Groups& groups, spdlog::logger& log);
  ~Daemons();  ///< ends every link

 private:
  using Clock = std::chrono::steady_clock;
  struct Row {
    std::unique_ptr<DaemonLink> link;
    Clock::time_point next_try;
    std::chrono::milliseconds pause{0};
  };

  Daemons(RunDir run_dir, Groups& groups, Fd events, Fd wake, spdlog::logger& log);
  void run();
  bool drain_events();
  void scan(bool changed);
  void end_links();

  const RunDir run_dir_;
  Groups& groups_;
  spdlog::logger& log_;
  Fd events_;  // inotify
  Fd wake_;    // eventfd: a link ended, or stop
  std::atomic<bool> stopping_ = false;
  std::map<std::string, Row> rows_;  // by socket; of the thread only
  Groups::Link next_link_ = 1;
  std::thread thread_;
};

}  // namespace wcache

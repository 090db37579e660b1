#pragma once

#include <spdlog/logger.h>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "daemon/event_loop.h"
#include "daemon/launcher_link.h"
#include "daemon/options.h"
#include "daemon/server.h"
#include "daemon/store.h"
#include "daemon/worker.h"
#include "ipc/connection.h"
#include "ipc/run_dir.h"
#include "ipc/socket_lock.h"

namespace wcache {

/// How a daemon ended.
enum class StopReason {
  signal,         ///< it was told to
  launcher_gone,  ///< its launcher ended before it was ready
  evicted,        ///< its entry was dropped on request
  failed,         ///< `error` says why
};
struct Stop {
  StopReason reason = StopReason::signal;
  std::optional<Error> error;  ///< with failed

  int exit_code() const;
};

/// One rank of one group: loads its entry on a thread of its own, serves it on the loop, reports to its
/// launcher. Nothing is visible to others before the entry is whole and read-only, and nothing is left when
/// run() returns.
class Daemon {
 public:
  /// What is different in tests. Called on the loading thread.
  using Load = std::function<Result<StoredEntry>(const LoadRequest&, const LoadEvents&, std::stop_token)>;

  /// Borrows run_dir, signals, loop and log; `signals` is a signalfd whose signals mean: end.
  Daemon(DaemonOptions options, const RunDir& run_dir, int signals, std::optional<Connection> launcher,
         EventLoop& loop, spdlog::logger& log, Load load);

  /// Until the end. A loading thread that hangs in a read of a dead disk is left behind: then the process
  /// ends in here, with the exit code that its end would have had.
  Stop run();

 private:
  void start_loading();
  void planned(const EntryPlan& plan);
  Status known(const Fingerprint& fingerprint);  // on the loading thread
  void loaded(Result<StoredEntry> entry);
  Status serve();
  Result<Key> agree(const Key& own, const std::stop_token& stop);  // on the loading thread
  void heard(Body body);
  void report();
  void report_regularly();
  void signalled();
  void launcher_gone();
  void begin_stop(Stop stop);
  void finish();
  void end_now();
  std::string device_uuid() const;
  RankStatus current_status() const;

  const DaemonOptions options_;
  const RunDir& run_dir_;
  int signals_;
  EventLoop& loop_;
  spdlog::logger& log_;
  Load load_;

  RankStatus status_;
  std::optional<Stop> stop_;
  bool loading_ = false;
  std::stop_source stop_loading_;

  std::mutex mutex_;
  std::optional<SocketLock> place_lock_;  // of a rank on a device; guarded likewise, held to the end
  std::optional<SocketLock> lock_;        // guarded by mutex_ until loading has ended
  std::condition_variable_any agreed_;    // with mutex_
  std::optional<Key> group_key_;          // guarded by mutex_; the launcher's answer, whole
  std::vector<Key::File> group_files_;    // pages of it so far

  std::optional<StoredEntry> entry_;
  LauncherLink launcher_;
  std::optional<Server> server_;
  Worker loader_;  // last: ends before what it uses
};

}  // namespace wcache

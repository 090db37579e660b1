#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "ipc/connection.h"
#include "ipc/listener.h"
#include "ipc/protocol.h"
#include "ipc/run_dir.h"
#include "tests/support/test_entry.h"

namespace wcache::test {

/// A daemon as wcachefs sees one: a public socket that hands out an entry's memory.
class FakeDaemon {
 public:
  FakeDaemon(const RunDir& run_dir, TestEntry entry, Role role = Role::target,
             std::string device_uuid = "HOST-0");
  ~FakeDaemon();  ///< hangs up without a word, as a daemon that was killed

  const TestEntry& entry() const { return entry_; }
  const std::string& socket() const { return socket_; }

  /// Ask the mount, and wait for its answer.
  WithdrawReply withdraw(bool force);
  std::vector<Holder> holders();

 private:
  void run();
  void serve(Connection connection);
  Body ask(Body request);

  TestEntry entry_;
  std::string socket_;
  std::optional<Listener> listener_;
  std::atomic<bool> stop_ = false;
  std::mutex mutex_;  // guards mount_
  std::optional<Connection> mount_;
  std::thread thread_;
};

}  // namespace wcache::test

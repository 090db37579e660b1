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

/// A daemon as wcachefs sees one: a public socket that hands out an entry's memory, and copies what is on its
/// device.
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

  /// While it is held, no copy is answered.
  void hold_copies(bool held) { copies_held_ = held; }
  /// Copies that were asked for so far.
  std::size_t copies() const { return copies_; }

 private:
  void run();
  void serve(Connection connection);
  bool answer(Connection& connection, const Envelope& request, const std::vector<Fd>& fds);
  bool copy(Connection& connection, const Envelope& request, int into);
  Body ask(Body request);

  TestEntry entry_;
  std::string socket_;
  std::optional<Listener> listener_;
  std::atomic<bool> stop_ = false;
  std::atomic<bool> copies_held_ = false;
  std::atomic<std::size_t> copies_ = 0;
  std::mutex mutex_;  // guards mount_
  std::optional<Connection> mount_;
  std::vector<std::thread> connections_;  // of thread_, until it has ended
  std::thread thread_;
};

}  // namespace wcache::test

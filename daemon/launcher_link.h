#pragma once

#include <functional>
#include <optional>

#include "daemon/event_loop.h"
#include "ipc/connection.h"
#include "ipc/protocol.h"

namespace wcache {

/// The private line to the launcher that started this daemon: statuses go out, its end comes in. On the
/// loop's thread.
class LauncherLink {
 public:
  /// Without a connection every call does nothing: a daemon that nobody launched. `gone` is called once, when
  /// the launcher has hung up. Borrows the loop.
  /// `heard` is called with each message from it.
  LauncherLink(EventLoop& loop, std::optional<Connection> connection, std::function<void()> gone,
               std::function<void(Body)> heard);
  ~LauncherLink();
  LauncherLink(const LauncherLink&) = delete;
  LauncherLink& operator=(const LauncherLink&) = delete;

  /// Never blocks: to a launcher that does not read, this status is lost. The next one says everything again.
  void send(const RankStatus& status);

  /// What must not be lost: waits up to two seconds for a launcher that is slow.
  Status send_surely(Body body);

  /// The last word: waits up to two seconds for a launcher that is slow.
  void send_last(const RankStatus& status);

 private:
  void readable();
  void close();

  EventLoop& loop_;
  std::optional<Connection> connection_;
  std::function<void()> gone_;
  std::function<void(Body)> heard_;
};

}  // namespace wcache

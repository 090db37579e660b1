#pragma once

#include <sys/types.h>

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "core/fd.h"
#include "core/result.h"
#include "ipc/deadline.h"
#include "ipc/message.h"

namespace wcache {

/// The process at the other end, as the kernel knows it from the time of connect(2) or socketpair(2).
struct Peer {
  pid_t pid = 0;
  uid_t uid = 0;
};

/// One end of a SOCK_SEQPACKET Unix socket: messages arrive whole or not at all. Move-only; the destructor
/// closes it. One thread may receive while others send; two threads must not receive at once. No call blocks
/// past its deadline, whatever the mode of the descriptor is (a deadline in the past makes one attempt), and
/// none raises SIGPIPE.
class Connection {
 public:
  /// Takes a connected socket, an inherited one for instance. Anything else than a Unix SOCK_SEQPACKET is
  /// invalid.
  static Result<Connection> adopt(Fd socket);

  /// Two ends, for a parent and its child.
  static Result<std::pair<Connection, Connection>> pair();

  /// Connects to the socket at `path`. Nobody listens there, or the path is absent: not_running.
  static Result<Connection> connect(const std::string& path, Deadline deadline);

  /// Sends one message; `fds` are borrowed. The peer is gone: not_running. The peer does not read: timeout.
  /// More than kMaxMessageBytes or kMaxMessageFds: internal.
  Status send(std::span<const std::byte> bytes, std::span<const int> fds, Deadline deadline);

  /// Waits for one message; nullopt when the peer has closed its end (a value, not an error). An empty
  /// message counts as the end, since it looks the same. After any other error than timeout the connection is
  /// of no use:
  ///   timeout  nothing came
  ///   corrupt  the message passed `limits`, or descriptors were lost on the way (a full table of open files
  ///   does
  ///            that); descriptors that did arrive are closed
  Result<std::optional<Message>> receive(const MessageLimits& limits, Deadline deadline);

  Result<Peer> peer() const;

  /// denied unless the peer runs as this process's effective user or as root.
  Status check_peer() const;

  int fd() const { return socket_.get(); }
  explicit operator bool() const { return static_cast<bool>(socket_); }
  void close() { socket_.reset(); }

 private:
  explicit Connection(Fd socket) : socket_(std::move(socket)) {}
  Fd socket_;
};

}  // namespace wcache

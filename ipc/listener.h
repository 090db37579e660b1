#pragma once

#include <optional>
#include <string>

#include "core/fd.h"
#include "core/result.h"
#include "ipc/connection.h"
#include "ipc/socket_lock.h"

namespace wcache {

/// A listening SOCK_SEQPACKET socket at a path of the run directory, mode 0600. It appears under its name
/// when it already listens (bound beside and renamed into place: inotify tells IN_MOVED_TO), so whoever sees
/// it can connect. The destructor removes the socket, then lets the lock go.
class Listener {
 public:
  /// Binds at lock.socket_path(); a socket left there by a crash is removed first, which the lock allows.
  static Result<Listener> bind(SocketLock lock);

  Listener(Listener&&) noexcept = default;
  Listener& operator=(Listener&&) = delete;
  ~Listener();

  /// One waiting connection whose peer has been checked (own user or root); nullopt when there is none, or
  /// when the one that was there is gone or was refused for its user. Never blocks; poll fd() for POLLIN.
  Result<std::optional<Connection>> accept();

  const std::string& path() const { return lock_.socket_path(); }
  int fd() const { return socket_.get(); }

 private:
  Listener(SocketLock lock, Fd socket) : lock_(std::move(lock)), socket_(std::move(socket)) {}

  SocketLock lock_;  // let go last: members go in reverse order
  Fd socket_;
};

/// Removes the socket at `path`, and its lock file, if nobody holds its lock: what a crash left behind.
/// True when something was removed.
bool remove_stale_socket(const std::string& path);

}  // namespace wcache

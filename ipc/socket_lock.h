#pragma once

#include <string>
#include <utility>

#include "core/fd.h"
#include "core/result.h"

namespace wcache {

/// The right to listen at one socket path: flock(2) on "<path>.lock", held until the object goes. Only
/// through it can a socket be bound or a stale one be removed, so two daemons never answer at one path and
/// nobody removes a live socket.
///
/// The lock file holds the holder's pid, for messages. It is removed while the lock is held; whoever takes a
/// lock checks that the file it locked is still the one of that name, so removing it is no race. After a
/// crash the file stays, not locked, and the next holder uses it.
class SocketLock {
 public:
  enum class Use {
    serve,  ///< to listen there; waits up to 100 ms for somebody who only sweeps
    sweep,  ///< to remove what a crash left, and let go at once
  };

  /// busy, "already served by pid N", when somebody has it.
  static Result<SocketLock> take(const std::string& socket_path, Use use = Use::serve);

  SocketLock(SocketLock&&) noexcept = default;
  SocketLock& operator=(SocketLock&& other) noexcept;
  ~SocketLock();

  const std::string& socket_path() const { return socket_path_; }

 private:
  SocketLock(std::string socket_path, Fd file)
      : socket_path_(std::move(socket_path)), file_(std::move(file)) {}
  void let_go();

  std::string socket_path_;
  Fd file_;
};

}  // namespace wcache

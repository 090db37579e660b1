#include "ipc/listener.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

namespace wcache {
namespace {

constexpr int kBacklog = 64;

/// "<dir>/wcache_x.sock" -> "<dir>/.cache_x.sock": no longer than the name itself, and skipped by who lists
/// sockets.
std::string hidden_path_of(const std::string& path) {
  std::string hidden = path;
  hidden[path.rfind('/') + 1] = '.';
  return hidden;
}

}  // namespace

Result<Listener> Listener::bind(SocketLock lock) {
  const std::string& path = lock.socket_path();
  const std::string hidden = hidden_path_of(path);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path)
    return fail(Reason::invalid, "socket path " + path + " has " + std::to_string(path.size()) +
                                     " bytes; the limit is " + std::to_string(sizeof address.sun_path - 1));
  std::memcpy(address.sun_path, hidden.data(), hidden.size());

  Fd socket = Fd::adopt(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return fail_errno("making a socket", errno);
  // Before bind, the mode of the socket is the mode its name will get.
  if (fchmod(socket.get(), 0600) != 0) return fail_errno("setting the mode of a socket", errno);
  unlink(hidden.c_str());
  unlink(path.c_str());
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return fail_errno("binding " + path, errno);
  if (listen(socket.get(), kBacklog) != 0 || std::rename(hidden.c_str(), path.c_str()) != 0) {
    const int errnum = errno;
    unlink(hidden.c_str());
    return fail_errno("listening at " + path, errnum);
  }
  return Listener(std::move(lock), std::move(socket));
}

Listener::~Listener() {
  if (socket_) unlink(path().c_str());
}

Result<std::optional<Connection>> Listener::accept() {
  Fd socket = Fd::adopt(accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket) {
    if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return std::nullopt;
    return fail_errno("accepting a connection at " + path(), errno);
  }
  Result<Connection> connection = Connection::adopt(std::move(socket));
  if (!connection) return fail(connection.error());
  if (!connection->check_peer()) return std::nullopt;
  return std::optional<Connection>(std::move(*connection));
}

bool remove_stale_socket(const std::string& path) {
  const Result<SocketLock> lock = SocketLock::take(path, SocketLock::Use::sweep);
  if (!lock) return false;
  unlink(hidden_path_of(path).c_str());
  return unlink(path.c_str()) == 0;
}

}  // namespace wcache

#include "ipc/connection.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

namespace wcache {
namespace {

/// How long to wait before trying again what poll(2) gives no event for: a full backlog, too many descriptors
/// in flight.
constexpr std::chrono::milliseconds kRetry{5};

Result<int> option_of(int fd, int option) {
  int value = 0;
  socklen_t length = sizeof value;
  if (getsockopt(fd, SOL_SOCKET, option, &value, &length) != 0)
    return fail_errno("looking at a socket", errno);
  return value;
}

Status wait_for(int fd, short events, Deadline deadline, const char* what) {
  for (;;) {
    pollfd item{fd, events, 0};
    const int ready = poll(&item, 1, remaining_ms(deadline));
    if (ready > 0) return {};
    if (ready < 0 && errno != EINTR) return fail_errno("waiting for a socket", errno);
    if (std::chrono::steady_clock::now() >= deadline) return fail(Reason::timeout, what);
  }
}

bool sleep_until_retry(Deadline deadline) {
  const Deadline now = std::chrono::steady_clock::now();
  if (now >= deadline) return false;
  std::this_thread::sleep_until(std::min<Deadline>(deadline, now + kRetry));
  return true;
}

/// Room for one SCM_RIGHTS control message, aligned as the kernel wants it.
class ControlBuffer {
 public:
  explicit ControlBuffer(std::size_t fds)
      : nbytes_(fds == 0 ? 0 : CMSG_LEN(fds * sizeof(int))),
        storage_((CMSG_SPACE(fds * sizeof(int)) + 7) / 8) {}
  void attach_to(msghdr& header) {
    header.msg_control = nbytes_ == 0 ? nullptr : storage_.data();
    // Exactly as long as the limit allows: CMSG_SPACE's padding would let one more descriptor in.
    header.msg_controllen = nbytes_;
  }

 private:
  std::size_t nbytes_;
  std::vector<std::uint64_t> storage_;
};

std::vector<Fd> take_fds(msghdr& header) {
  std::vector<Fd> fds;
  for (cmsghdr* item = CMSG_FIRSTHDR(&header); item != nullptr; item = CMSG_NXTHDR(&header, item)) {
    if (item->cmsg_level != SOL_SOCKET || item->cmsg_type != SCM_RIGHTS || item->cmsg_len < CMSG_LEN(0))
      continue;
    const std::size_t count = (item->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(item) + i * sizeof(int), sizeof fd);
      fds.push_back(Fd::adopt(fd));
    }
  }
  return fds;
}

}  // namespace

Result<Connection> Connection::adopt(Fd socket) {
  const Result<int> domain = option_of(socket.get(), SO_DOMAIN);
  const Result<int> type = option_of(socket.get(), SO_TYPE);
  if (!domain || !type || *domain != AF_UNIX || *type != SOCK_SEQPACKET)
    return fail(Reason::invalid,
                "descriptor " + std::to_string(socket.get()) + " is no SOCK_SEQPACKET Unix socket");
  return Connection(std::move(socket));
}

Result<std::pair<Connection, Connection>> Connection::pair() {
  std::array<int, 2> fds{-1, -1};
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds.data()) != 0)
    return fail_errno("making a pair of sockets", errno);
  return std::pair{Connection(Fd::adopt(fds[0])), Connection(Fd::adopt(fds[1]))};
}

Result<Connection> Connection::connect(const std::string& path, Deadline deadline) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path)
    return fail(Reason::invalid, "socket path " + path + " has " + std::to_string(path.size()) +
                                     " bytes; the limit is " + std::to_string(sizeof address.sun_path - 1));
  std::memcpy(address.sun_path, path.data(), path.size());
  Fd socket = Fd::adopt(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return fail_errno("making a socket", errno);
  while (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    if (errno == EINTR) continue;
    if (errno == ECONNREFUSED || errno == ENOENT || errno == ENOTDIR)
      return fail(Reason::not_running, "nobody listens at " + path);
    if (errno != EAGAIN) return fail_errno("connecting to " + path, errno);
    if (!sleep_until_retry(deadline)) return fail(Reason::timeout, "no answer to connecting to " + path);
  }
  return Connection(std::move(socket));
}

Status Connection::send(std::span<const std::byte> bytes, std::span<const int> fds, Deadline deadline) {
  if (bytes.empty() || bytes.size() > kMaxMessageBytes || fds.size() > kMaxMessageFds)
    return fail(Reason::internal, "a message of " + std::to_string(bytes.size()) + " bytes and " +
                                      std::to_string(fds.size()) + " descriptors does not keep the limits");
  iovec data{const_cast<std::byte*>(bytes.data()), bytes.size()};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  ControlBuffer control(fds.size());
  control.attach_to(header);
  if (!fds.empty()) {
    cmsghdr* item = CMSG_FIRSTHDR(&header);
    item->cmsg_level = SOL_SOCKET;
    item->cmsg_type = SCM_RIGHTS;
    item->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(item), fds.data(), fds.size_bytes());
  }
  for (;;) {
    if (sendmsg(socket_.get(), &header, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return {};
    if (errno == EINTR) continue;
    if (errno == EPIPE || errno == ECONNRESET || errno == ENOTCONN)
      return fail(Reason::not_running, "the peer closed the connection");
    if (errno == EAGAIN) {
      if (const Status waited = wait_for(socket_.get(), POLLOUT, deadline, "the peer does not read"); !waited)
        return waited;
    } else if (errno == ETOOMANYREFS) {
      // Descriptors in flight count against RLIMIT_NOFILE until the peer takes them out.
      if (!sleep_until_retry(deadline))
        return fail(Reason::timeout, "the peer does not take its descriptors");
    } else {
      return fail_errno("sending a message", errno);
    }
  }
}

Result<std::optional<Message>> Connection::receive(const MessageLimits& limits, Deadline deadline) {
  Message message;
  message.bytes.resize(limits.bytes);
  iovec data{message.bytes.data(), message.bytes.size()};
  ControlBuffer control(std::min(limits.fds, kMaxMessageFds));
  msghdr header{};
  ssize_t received = -1;
  for (;;) {
    header = msghdr{};
    header.msg_iov = &data;
    header.msg_iovlen = 1;
    control.attach_to(header);
    received = recvmsg(socket_.get(), &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (received >= 0) break;
    if (errno == EINTR) continue;
    if (errno == ECONNRESET) return std::nullopt;
    if (errno != EAGAIN) return fail_errno("receiving a message", errno);
    if (const Status waited = wait_for(socket_.get(), POLLIN, deadline, "the peer sent nothing"); !waited)
      return fail(waited.error());
  }
  message.fds = take_fds(header);
  if ((header.msg_flags & MSG_TRUNC) != 0)
    return fail(Reason::corrupt,
                "a message is longer than the " + std::to_string(limits.bytes) + " bytes allowed");
  if ((header.msg_flags & MSG_CTRUNC) != 0)
    return fail(Reason::corrupt,
                "a message lost descriptors on the way: more than the " + std::to_string(limits.fds) +
                    " allowed, or no room for them",
                "raise the limit on open files (ulimit -n)");
  if (received == 0) return std::nullopt;
  message.bytes.resize(static_cast<std::size_t>(received));
  return message;
}

Result<Peer> Connection::peer() const {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  if (getsockopt(socket_.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0)
    return fail_errno("asking who the peer is", errno);
  return Peer{credentials.pid, credentials.uid};
}

Status Connection::check_peer() const {
  const Result<Peer> who = peer();
  if (!who) return fail(who.error());
  if (who->uid == geteuid() || who->uid == 0) return {};
  return fail(Reason::denied, "process " + std::to_string(who->pid) + " of user " + std::to_string(who->uid) +
                                  " is neither this user nor root");
}

}  // namespace wcache

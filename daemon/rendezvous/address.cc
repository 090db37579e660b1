#include "daemon/rendezvous/address.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <memory>

namespace wcache::rendezvous {
namespace {

constexpr int kBacklog = 128;
using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Result<Addresses> resolve(const std::string& address, std::uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int code = getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &found); code != 0)
    return fail(Reason::invalid, "'" + address + "': " + gai_strerror(code), "give the address of node 0",
                "master-addr");
  return Addresses(found, &freeaddrinfo);
}

Fd new_socket(const addrinfo& at) {
  return Fd::adopt(socket(at.ai_family, at.ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, at.ai_protocol));
}

}  // namespace

Result<Fd> listen_at(const std::string& address, std::uint16_t port) {
  Result<Addresses> at = resolve(address, port);
  if (!at) return tl::unexpected(at.error());
  Fd fd = new_socket(**at);
  const int on = 1;
  if (!fd || setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0)
    return fail_errno("a socket for " + address, errno);
  if (bind(fd.get(), (*at)->ai_addr, (*at)->ai_addrlen) == 0 && listen(fd.get(), kBacklog) == 0) return fd;
  const int errnum = errno;
  const std::string where = address + ":" + std::to_string(port);
  if (errnum == EADDRINUSE)
    return fail(Reason::busy, "port " + where + " is taken", "choose another port for this group",
                "master-port");
  if (errnum == EADDRNOTAVAIL)
    return fail(Reason::invalid, address + " is no address of this machine, which is node 0",
                "give node 0's own address", "master-addr");
  return fail_errno("listening at " + where, errnum);
}

Result<Fd> start_connect(const std::string& address, std::uint16_t port) {
  Result<Addresses> at = resolve(address, port);
  if (!at) return tl::unexpected(at.error());
  Fd fd = new_socket(**at);
  if (!fd) return fail_errno("a socket for " + address, errno);
  const int on = 1;
  setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  if (connect(fd.get(), (*at)->ai_addr, (*at)->ai_addrlen) != 0 && errno != EINPROGRESS)
    return fail_errno("connecting to " + address, errno);
  return fd;
}

}  // namespace wcache::rendezvous

#pragma once

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <utility>
#include <variant>

#include "core/fd.h"
#include "ipc/client.h"
#include "ipc/listener.h"

namespace wcache {

/// Answers Hello and StatusRequest at a socket, one connection after the other, as daemons and launchers do.
class StatusServer {
 public:
  StatusServer(const std::string& path, StatusReply reply)
      : listener_(Listener::bind(SocketLock::take(path).value()).value()),
        reply_(std::move(reply)),
        stop_(Fd::adopt(eventfd(0, EFD_CLOEXEC))),
        thread_([this] { serve(); }) {}

  ~StatusServer() {
    const std::uint64_t one = 1;
    if (write(stop_.get(), &one, sizeof one) != sizeof one) std::terminate();
    thread_.join();
  }

 private:
  void serve() {
    for (;;) {
      std::array<pollfd, 2> items{{{listener_.fd(), POLLIN, 0}, {stop_.get(), POLLIN, 0}}};
      if (poll(items.data(), items.size(), 10'000) <= 0 || items[1].revents != 0) return;
      Result<std::optional<Connection>> connection = listener_.accept();
      if (connection && *connection) answer(**connection);
    }
  }

  void answer(Connection& connection) {
    for (;;) {
      const auto message = connection.receive({}, deadline_in(std::chrono::seconds(5)));
      if (!message || !*message) return;
      const Result<Envelope> envelope = decode((*message)->bytes);
      if (!envelope) return;
      Body body = reply_;
      if (std::holds_alternative<Hello>(envelope->body)) body = HelloReply{kMaxProtocolVersion, getpid()};
      if (!send_message(connection, {envelope->id, body}, deadline_in(std::chrono::seconds(5)))) return;
    }
  }

  Listener listener_;
  StatusReply reply_;
  Fd stop_;
  std::thread thread_;
};

}  // namespace wcache

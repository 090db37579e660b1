#include "daemon/launcher_link.h"

#include <sys/epoll.h>

#include <chrono>
#include <utility>

#include "ipc/client.h"

namespace wcache {
namespace {

constexpr std::chrono::seconds kLastWord{2};

}  // namespace

LauncherLink::LauncherLink(EventLoop& loop, std::optional<Connection> connection, std::function<void()> gone,
                           std::function<void(Body)> heard)
    : loop_(loop), connection_(std::move(connection)), gone_(std::move(gone)), heard_(std::move(heard)) {
  if (!connection_) return;
  if (!loop_.watch(connection_->fd(), EPOLLIN, [this](std::uint32_t) { readable(); })) connection_.reset();
}

LauncherLink::~LauncherLink() {
  close();
}

void LauncherLink::close() {
  if (!connection_) return;
  loop_.unwatch(connection_->fd());
  connection_.reset();
}

void LauncherLink::send(const RankStatus& status) {
  if (connection_) send_message(*connection_, Envelope{0, status}, Deadline::min());
}

Status LauncherLink::send_surely(Body body) {
  if (!connection_) return fail(Reason::not_running, "there is no launcher");
  return send_message(*connection_, Envelope{0, std::move(body)}, deadline_in(kLastWord));
}

void LauncherLink::send_last(const RankStatus& status) {
  if (connection_) send_message(*connection_, Envelope{0, status}, deadline_in(kLastWord));
}

void LauncherLink::readable() {
  const Result<std::optional<Message>> message = connection_->receive({}, Deadline::min());
  if (!message && message.error().reason == Reason::timeout) return;
  if (message && *message) {
    Result<Envelope> envelope = decode((*message)->bytes);
    if (envelope) return heard_(std::move(envelope->body));
  }
  close();
  gone_();
}

}  // namespace wcache

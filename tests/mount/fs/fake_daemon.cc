#include "tests/mount/fs/fake_daemon.h"

#include <poll.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "ipc/client.h"

namespace wcache::test {
namespace {

using std::chrono::milliseconds;
constexpr std::chrono::seconds kWait{10};

template <class T>
T need(Result<T> result) {
  if (result) return std::move(*result);
  std::fprintf(stderr, "fake daemon: %s\n", result.error().message.c_str());
  std::abort();
}

void send(Connection& connection, const Envelope& envelope, const std::vector<int>& fds = {}) {
  const std::vector<std::byte> bytes = need(encode(envelope));
  (void)connection.send(bytes, fds, deadline_in(kWait));
}

}  // namespace

FakeDaemon::FakeDaemon(const RunDir& run_dir, TestEntry entry, Role role, std::string device_uuid)
    : entry_(std::move(entry)), socket_(run_dir.rank_socket(role, entry_.fingerprint, device_uuid)) {
  listener_.emplace(need(Listener::bind(need(SocketLock::take(socket_)))));
  thread_ = std::thread([this] { run(); });
}

FakeDaemon::~FakeDaemon() {
  stop_ = true;
  thread_.join();
}

void FakeDaemon::run() {
  while (!stop_) {
    pollfd fd{listener_->fd(), POLLIN, 0};
    if (poll(&fd, 1, 5) <= 0) continue;
    std::optional<Connection> connection = need(listener_->accept());
    if (connection) serve(std::move(*connection));
  }
}

void FakeDaemon::serve(Connection connection) {
  for (;;) {
    Result<std::optional<Message>> message = connection.receive(MessageLimits{}, deadline_in(kWait));
    if (!message || !*message) return;
    const Envelope request = need(decode((*message)->bytes));
    if (std::holds_alternative<Hello>(request.body)) {
      send(connection, {request.id, HelloReply{kMaxProtocolVersion, static_cast<std::int32_t>(getpid())}});
      continue;
    }
    const auto count = static_cast<std::uint32_t>(entry_.arena.images.size() + 1);
    std::vector<int> fds{entry_.arena.manifest.get()};
    for (const Fd& image : entry_.arena.images) fds.push_back(image.get());
    send(connection, {request.id, AttachReply{count, entry_.manifest_nbytes}});
    send(connection, {request.id, Descriptors{0, count}}, fds);
    const std::lock_guard lock(mutex_);
    mount_ = std::move(connection);
    return;
  }
}

Body FakeDaemon::ask(Body request) {
  const std::lock_guard lock(mutex_);
  if (!mount_) {
    std::fprintf(stderr, "fake daemon: no mount has attached\n");
    std::abort();
  }
  send(*mount_, {7, std::move(request)});
  std::optional<Message> reply = need(mount_->receive(MessageLimits{}, deadline_in(kWait)));
  if (!reply) return ErrorReply{Error{Reason::not_running, "the mount hung up"}};
  return need(decode(reply->bytes)).body;
}

WithdrawReply FakeDaemon::withdraw(bool force) {
  return std::get<WithdrawReply>(ask(WithdrawRequest{force}));
}

std::vector<Holder> FakeDaemon::holders() {
  return std::get<HoldersReply>(ask(HoldersRequest{})).holders;
}

}  // namespace wcache::test

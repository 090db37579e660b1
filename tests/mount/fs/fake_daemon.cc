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
  for (std::thread& connection : connections_) connection.join();
}

void FakeDaemon::run() {
  while (!stop_) {
    pollfd fd{listener_->fd(), POLLIN, 0};
    if (poll(&fd, 1, 5) <= 0) continue;
    std::optional<Connection> accepted = need(listener_->accept());
    if (!accepted) continue;
    connections_.emplace_back(
        [this, connection = std::move(*accepted)]() mutable { serve(std::move(connection)); });
  }
}

void FakeDaemon::serve(Connection connection) {
  while (!stop_) {
    Result<std::optional<Message>> message =
        connection.receive({kMaxMessageBytes, 1}, deadline_in(milliseconds(5)));
    if (!message && message.error().reason == Reason::timeout) continue;
    if (!message || !*message) return;
    const Envelope request = need(decode((*message)->bytes));
    if (!answer(connection, request, (*message)->fds)) return;
    if (!std::holds_alternative<AttachRequest>(request.body)) continue;
    const std::lock_guard lock(mutex_);
    mount_ = std::move(connection);
    return;
  }
}

bool FakeDaemon::answer(Connection& connection, const Envelope& request, const std::vector<Fd>& fds) {
  if (std::holds_alternative<Hello>(request.body)) {
    send(connection, {request.id, HelloReply{kMaxProtocolVersion, static_cast<std::int32_t>(getpid())}});
    return true;
  }
  if (std::holds_alternative<CopyRequest>(request.body)) return copy(connection, request, fds.at(0).get());
  std::vector<int> memory{entry_.arena.manifest.get()};
  for (const Fd& image : entry_.arena.images)
    if (image) memory.push_back(image.get());
  for (const Fd& slab : entry_.slabs) memory.push_back(slab.get());
  const AttachReply reply{0, entry_.manifest_nbytes, static_cast<std::uint32_t>(entry_.slabs.size()),
                          entry_.handles, entry_.instance};
  return send_attachment(connection, request.id, reply, memory, deadline_in(kWait)).has_value();
}

bool FakeDaemon::copy(Connection& connection, const Envelope& request, int into) {
  const auto& which = std::get<CopyRequest>(request.body);
  ++copies_;
  while (copies_held_ && !stop_) usleep(1000);
  const char* bytes = entry_.bytes.at(which.file).data() + which.offset;
  if (stop_ || pwrite(into, bytes, which.nbytes, 0) != static_cast<ssize_t>(which.nbytes)) return false;
  send(connection, {request.id, CopyReply{which.nbytes}});
  return true;
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

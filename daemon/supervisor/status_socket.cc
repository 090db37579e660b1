#include "daemon/supervisor/status_socket.h"

#include <unistd.h>

#include <utility>
#include <variant>

#include "ipc/client.h"
#include "ipc/message.h"

namespace wcache {
namespace {

constexpr std::chrono::seconds kPatience{10};
constexpr std::size_t kMostCallers = 64;

bool reply(Connection& connection, std::uint32_t id, Body body) {
  return send_message(connection, {id, std::move(body)}, Deadline{}).has_value();
}

bool refuse(Connection& connection, std::uint32_t id, Error error) {
  reply(connection, id, ErrorReply{std::move(error)});
  return false;
}

/// False when the connection is of no use any more.
bool answer(Connection& connection, const Envelope& request, const std::function<StatusReply()>& status) {
  if (const auto* hello = std::get_if<Hello>(&request.body)) {
    const Result<std::uint16_t> version = negotiate(*hello);
    if (!version) return refuse(connection, request.id, version.error());
    return reply(connection, request.id, HelloReply{*version, getpid()});
  }
  if (!std::holds_alternative<StatusRequest>(request.body))
    return refuse(connection, request.id,
                  Error{Reason::unsupported, "a launcher answers nothing but questions for its status"});
  for (StatusReply& page : pages_of(status())) {
    if (!reply(connection, request.id, std::move(page))) return false;
  }
  return true;
}

}  // namespace

void StatusSocket::watch(std::vector<pollfd>& items) const {
  items.push_back({listener_.fd(), POLLIN, 0});
  for (const Caller& caller : callers_) items.push_back({caller.connection.fd(), POLLIN, 0});
}

void StatusSocket::turn(const std::function<StatusReply()>& status) {
  while (callers_.size() < kMostCallers) {
    Result<std::optional<Connection>> connection = listener_.accept();
    if (!connection || !*connection) break;
    callers_.push_back({std::move(**connection), deadline_in(kPatience)});
  }
  std::erase_if(callers_, [&](Caller& caller) { return !serve(caller, status); });
}

bool StatusSocket::serve(Caller& caller, const std::function<StatusReply()>& status) {
  for (;;) {
    const Result<std::optional<Message>> message =
        caller.connection.receive({kMaxMessageBytes, 0}, Deadline{});
    if (!message && message.error().reason == Reason::timeout) return remaining_ms(caller.deadline) > 0;
    if (!message || !*message) return false;
    const Result<Envelope> request = decode((*message)->bytes);
    if (!request || !answer(caller.connection, *request, status)) return false;
    caller.deadline = deadline_in(kPatience);
  }
}

}  // namespace wcache

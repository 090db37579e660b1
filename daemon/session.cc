#include "daemon/session.h"

#include <sys/epoll.h>

#include <chrono>
#include <utility>
#include <variant>

#include "ipc/message.h"

namespace wcache {
namespace {

/// A queue is tried again by the clock, not by EPOLLOUT: too many descriptors in flight give no such event.
constexpr std::chrono::milliseconds kRetry{5};
constexpr std::chrono::seconds kPatience{30};

}  // namespace

Session::Session(EventLoop& loop, Connection connection, Peer peer, Events events)
    : loop_(loop), connection_(std::move(connection)), peer_(peer), events_(std::move(events)) {}

Session::~Session() {
  if (connection_) loop_.unwatch(connection_.fd());
  if (retry_) loop_.cancel(*retry_);
  for (const auto& [id, question] : questions_) loop_.cancel(question.timer);
}

Status Session::start() {
  return loop_.watch(connection_.fd(), EPOLLIN, [this](std::uint32_t events) { ready(events); });
}

void Session::end(std::string why) {
  if (ended()) return;
  loop_.unwatch(connection_.fd());
  connection_.close();
  outbox_.clear();
  if (retry_) loop_.cancel(*std::exchange(retry_, std::nullopt));
  end_reason_ = std::move(why);
  while (!questions_.empty()) answer(questions_.begin()->first, std::nullopt);
  events_.ended(*this);
}

void Session::ready(std::uint32_t events) {
  if ((events & EPOLLIN) != 0 && idle() && held_ == 0) return receive();
  if ((events & (EPOLLHUP | EPOLLERR)) != 0) end("hung up");
}

void Session::receive() {
  Result<std::optional<Message>> message = connection_.receive({kMaxMessageBytes, 1}, Deadline::min());
  if (!message) {
    if (message.error().reason != Reason::timeout) end(message.error().message);
    return;
  }
  if (!*message) return end("hung up");
  Result<Envelope> envelope = decode((*message)->bytes);
  if (!envelope) {
    send(Envelope{0, ErrorReply{envelope.error()}});
    return end(envelope.error().message);
  }
  if (take_answer(*envelope)) return;
  std::vector<Fd>& fds = (*message)->fds;
  events_.request(*this, std::move(*envelope),
                  fds.empty() ? std::nullopt : std::optional(std::move(fds.front())));
}

void Session::send(const Envelope& envelope, std::vector<int> fds) {
  if (ended()) return;
  Result<std::vector<std::byte>> bytes = encode(envelope);
  if (!bytes) return end(bytes.error().message);
  if (idle()) give_up_ = deadline_in(kPatience);
  outbox_.push_back({std::move(*bytes), std::move(fds)});
  if (!retry_) flush();
}

void Session::flush() {
  retry_.reset();
  while (!outbox_.empty()) {
    const Outgoing& next = outbox_.front();
    const Status sent = connection_.send(next.bytes, next.fds, Deadline::min());
    if (!sent && sent.error().reason != Reason::timeout) return end(sent.error().message);
    if (!sent) {
      if (std::chrono::steady_clock::now() >= give_up_) return end("does not read its answers");
      listen();
      retry_ = loop_.at(deadline_in(kRetry), [this] { flush(); });
      return;
    }
    give_up_ = deadline_in(kPatience);
    outbox_.pop_front();
  }
  listen();
}

/// Asks the loop for what may be read now.
void Session::listen() {
  loop_.change(connection_.fd(), idle() && held_ == 0 ? std::uint32_t{EPOLLIN} : 0);
}

void Session::hold_requests() {
  ++held_;
  if (!ended()) listen();
}

void Session::release_requests() {
  --held_;
  if (!ended()) listen();
}

void Session::ask(Body body, Deadline deadline, Answered answered) {
  if (ended()) return answered(std::nullopt);
  const std::uint32_t id = ++last_question_;
  const EventLoop::TimerId timer = loop_.at(deadline, [this, id] { answer(id, std::nullopt); });
  questions_.emplace(id, Question{std::move(answered), timer});
  send(Envelope{id, std::move(body)});
}

bool Session::take_answer(Envelope& envelope) {
  const bool is_answer = std::holds_alternative<HoldersReply>(envelope.body) ||
                         std::holds_alternative<WithdrawReply>(envelope.body) ||
                         std::holds_alternative<ErrorReply>(envelope.body);
  if (!is_answer) return false;
  const bool is_error = std::holds_alternative<ErrorReply>(envelope.body);
  answer(envelope.id, is_error ? std::nullopt : std::optional(std::move(envelope.body)));
  return true;
}

void Session::answer(std::uint32_t id, std::optional<Body> body) {
  const auto found = questions_.find(id);
  if (found == questions_.end()) return;  // too late, or never asked
  const Question question = std::move(found->second);
  questions_.erase(found);
  loop_.cancel(question.timer);
  question.answered(std::move(body));
}

}  // namespace wcache

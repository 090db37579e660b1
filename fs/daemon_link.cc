#include "fs/daemon_link.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <exception>
#include <utility>

namespace wcache {
namespace {

constexpr std::chrono::seconds kConnectWait{5};
constexpr std::chrono::seconds kAttachWait{30};
constexpr std::chrono::seconds kMessageWait{5};

void raise(int eventfd) {
  const std::uint64_t one = 1;
  if (write(eventfd, &one, sizeof one) != sizeof one) return;  // it is raised already
}

/// A socket that a crash left behind is tried again and again: no news.
spdlog::level::level_enum level_of(const Error& error) {
  const bool usual = error.reason == Reason::not_running || error.reason == Reason::not_ready;
  return usual ? spdlog::level::debug : spdlog::level::warn;
}

}  // namespace

DaemonLink::DaemonLink(std::string socket, Groups::Link number, Groups& groups, int wake, spdlog::logger& log)
    : socket_(std::move(socket)),
      number_(number),
      groups_(groups),
      wake_(wake),
      log_(log),
      stop_(Fd::adopt(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK))),
      thread_([this] { run(); }) {}

DaemonLink::~DaemonLink() {
  raise(stop_.get());
  thread_.join();
}

void DaemonLink::run() {
  try {
    Result<Client> client = Client::connect(socket_, Purpose::mount, "wcachefs", deadline_in(kConnectWait));
    Status served = client ? serve(*client) : Status(fail(std::move(client.error())));
    if (!served) log_.log(level_of(served.error()), "{}: {}", socket_, served.error().message);
  } catch (const std::exception& e) {
    log_.error("{}: {}", socket_, e.what());
  }
  groups_.lose(number_);
  ended_ = true;
  raise(wake_);
}

Status DaemonLink::join(Client& client) {
  Result<Attachment> attachment = client.attach(deadline_in(kAttachWait));
  if (!attachment) return fail(std::move(attachment.error()));
  Result<std::shared_ptr<const Part>> part =
      Part::make(std::move(*attachment), client.server_pid(), socket_, log_);
  if (!part) return fail(std::move(part.error()));
  log_.info("{}/{} rank {} from {}", (*part)->manifest().role(), to_hex((*part)->manifest().fingerprint()),
            (*part)->manifest().rank(), socket_);
  return groups_.join(number_, std::move(*part));
}

/// Until the daemon hangs up or the link is stopped: both are no errors.
Status DaemonLink::serve(Client& client) {
  if (Status done = join(client); !done) return done;
  joined_ = true;
  Connection& connection = client.connection();
  for (;;) {
    if (Status readable = wait_readable(connection.fd()); !readable)
      return readable.error().reason == Reason::timeout ? Status() : readable;
    Result<std::optional<Message>> message = connection.receive(MessageLimits{}, deadline_in(kMessageWait));
    if (!message) return fail(std::move(message.error()));
    if (!*message) {
      log_.info("{}: the daemon is gone", socket_);
      return {};
    }
    Result<Envelope> request = decode((*message)->bytes);
    if (!request) return fail(std::move(request.error()));
    const Envelope reply{request->id, answer(request->body)};
    if (Status sent = send_message(connection, reply, deadline_in(kMessageWait)); !sent) return sent;
  }
}

/// timeout: stop was asked for.
Status DaemonLink::wait_readable(int fd) const {
  std::array<pollfd, 2> fds{pollfd{fd, POLLIN, 0}, pollfd{stop_.get(), POLLIN, 0}};
  while (poll(fds.data(), fds.size(), -1) < 0)
    if (errno != EINTR) return fail_errno("poll", errno);
  if (fds[1].revents != 0) return fail(Reason::timeout, "stopped");
  return {};
}

Body DaemonLink::answer(const Body& request) {
  if (const auto* withdraw = std::get_if<WithdrawRequest>(&request)) {
    WithdrawReply reply = groups_.withdraw(number_, withdraw->force);
    fit_holders(reply.holders);
    log_.info("{}: {}", socket_, reply.withdrawn ? "withdrawn" : "not withdrawn: files are open");
    return reply;
  }
  if (std::holds_alternative<HoldersRequest>(request)) {
    HoldersReply reply{groups_.holders(number_)};
    fit_holders(reply.holders);
    return reply;
  }
  return ErrorReply{Error{Reason::invalid, "wcachefs does not answer " + std::string(name_of(request))}};
}

}  // namespace wcache

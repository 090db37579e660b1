#include "daemon/rendezvous/loop.h"

#include <netdb.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "daemon/rendezvous/address.h"

namespace wcache {
namespace {

using namespace std::chrono_literals;
using rendezvous::Frame;
using rendezvous::kMaxFrame;
using rendezvous::kMaxJoin;
using rendezvous::Link;

constexpr std::size_t kMaxStrangers = 64;
constexpr auto kStrangerPatience = 2s;
constexpr auto kAliveEvery = 1s;
constexpr auto kConnectEvery = 200ms;
constexpr auto kFarewell = 1s;
constexpr auto kTellFailure = 3s;  // how long a failed node that has no hub yet tries to tell it

/// Equal in time that does not depend on where they differ.
bool same_token(std::string_view a, std::string_view b) {
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < b.size(); ++i)
    difference |= static_cast<unsigned>(static_cast<unsigned char>(b[i]) ^
                                        static_cast<unsigned char>(a.empty() ? 0 : a[i % a.size()]));
  return difference == 0;
}

}  // namespace

Rendezvous::Loop::Loop(RendezvousOptions options, Handler handler, Fd wake, Fd listener)
    : options_(std::move(options)),
      handler_(std::move(handler)),
      wake_(std::move(wake)),
      listener_(std::move(listener)),
      deadline_(Clock::now() + options_.timeout),
      next_alive_(Clock::now()),
      next_connect_(Clock::now()),
      nodes_(is_hub() ? options_.nnodes : 2) {
  nodes_[is_hub() ? 0 : 1].label = options_.label;
  thread_ = std::jthread([this](std::stop_token stop) { run(stop); });
}

Rendezvous::Loop::~Loop() {
  thread_.request_stop();
  eventfd_write(wake_.get(), 1);
}

void Rendezvous::Loop::post(Command command) {
  {
    const std::lock_guard lock(mutex_);
    commands_.push_back(std::move(command));
  }
  eventfd_write(wake_.get(), 1);
}

void Rendezvous::Loop::run(std::stop_token stop) {
  while (!done_ && !stop.stop_requested()) {
    wait_for_events();
    take_commands();
    if (!done_) is_hub() ? hub_turn() : spoke_turn();
    if (!done_) keep_alive();
    if (!done_) check_deadlines();
  }
  if (!done_) take_commands();  // a failure that was said just before is told as such
  if (!done_) {
    to_all(
        rendezvous::Failed{options_.label, Error{Reason::evicted, "was stopped before the group was ready"}});
    farewell();
  }
}

void Rendezvous::Loop::wait_for_events() {
  std::vector<pollfd> fds{{wake_.get(), POLLIN, 0}};
  const auto add = [&](const Link& link) {
    fds.push_back({link.fd(), static_cast<short>(link.wants_write() ? POLLIN | POLLOUT : POLLIN), 0});
  };
  if (listener_) fds.push_back({listener_.get(), POLLIN, 0});
  if (connecting_) fds.push_back({connecting_.get(), POLLOUT, 0});
  for (const Stranger& stranger : strangers_) add(stranger.link);
  for (const Node& node : nodes_)
    if (node.link) add(*node.link);
  constexpr int kTickMs = 100;  // deadlines, retries and signs of life are checked this often
  poll(fds.data(), fds.size(), kTickMs);
  eventfd_t count = 0;
  if ((fds[0].revents & POLLIN) != 0) eventfd_read(wake_.get(), &count);
}

void Rendezvous::Loop::take_commands() {
  std::vector<Command> commands;
  {
    const std::lock_guard lock(mutex_);
    commands.swap(commands_);
  }
  for (Command& command : commands) {
    if (done_) return;
    std::visit([this](auto& c) { obey(c); }, command);
  }
}

void Rendezvous::Loop::obey(Contribute& command) {
  if (is_hub()) {
    nodes_[0].part = std::move(command.part);
    hub_progress();
  } else {
    nodes_[1].part = std::move(command.part);
    if (nodes_[0].link) nodes_[0].link->send(rendezvous::Part{*nodes_[1].part});
  }
}

void Rendezvous::Loop::obey(LocalReady&) {
  nodes_[is_hub() ? 0 : 1].ready = true;
  if (is_hub())
    hub_progress();
  else if (nodes_[0].link)
    nodes_[0].link->send(rendezvous::NodeReady{});
}

void Rendezvous::Loop::obey(LocalFailed& command) {
  const bool unheard = !is_hub() && !nodes_[0].link;
  if (!unheard) return fail_all(options_.label, std::move(command.error));
  untold_ = std::move(command.error);
  deadline_ = std::min(deadline_, Clock::now() + kTellFailure);
}

// ---- hub

void Rendezvous::Loop::hub_turn() {
  accept_strangers();
  hear_strangers();
  for (std::size_t rank = 1; rank < nodes_.size() && !done_; ++rank) hear_node(rank);
}

void Rendezvous::Loop::accept_strangers() {
  while (true) {
    Fd fd = Fd::adopt(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd) return;
    if (strangers_.size() == kMaxStrangers) strangers_.pop_front();
    strangers_.push_back({Link(std::move(fd)), Clock::now() + kStrangerPatience});
  }
}

void Rendezvous::Loop::hear_strangers() {
  for (auto it = strangers_.begin(); it != strangers_.end();) {
    const Status alive = it->link.fill(kMaxJoin);
    const Result<std::optional<Frame>> frame = it->link.next(kMaxJoin);
    const auto* join = frame && *frame ? std::get_if<rendezvous::Join>(&**frame) : nullptr;
    const bool keep = alive && frame && !*frame && Clock::now() < it->until;
    if (join != nullptr && !admit(*it, *join)) (void)it->link.flush();
    it = keep ? std::next(it) : strangers_.erase(it);
  }
}

bool Rendezvous::Loop::admit(Stranger& stranger, const rendezvous::Join& join) {
  if (!same_token(join.token, options_.token)) return false;
  const auto refuse = [&](Reason reason, std::string message) {
    stranger.link.send(rendezvous::Failed{options_.label, Error{reason, std::move(message)}});
    return false;
  };
  if (join.version != rendezvous::kVersion)
    return refuse(Reason::version, "speaks version " + std::to_string(rendezvous::kVersion) +
                                       " between nodes, not " + std::to_string(join.version));
  if (join.nnodes != options_.nnodes)
    return refuse(Reason::mismatch, "was started with nnodes " + std::to_string(options_.nnodes) + ", " +
                                        join.label + " with " + std::to_string(join.nnodes));
  if (join.role != to_string(options_.role))
    return refuse(Reason::mismatch, "is the group of role " + std::string(to_string(options_.role)) +
                                        ", not " + join.role + ": check the two master ports");
  if (join.node_rank == 0 || join.node_rank >= nodes_.size())
    return refuse(Reason::mismatch, "has no node rank " + std::to_string(join.node_rank) + " to give");
  Node& node = nodes_[join.node_rank];
  if (node.link)
    return refuse(Reason::busy, "has a node " + std::to_string(join.node_rank) + " already: " + node.label);
  node.label = join.label;
  node.link = std::move(stranger.link);
  return true;
}

void Rendezvous::Loop::hear_node(std::size_t rank) {
  Node& node = nodes_[rank];
  if (!node.link) return;
  const Status received = node.link->fill(kMaxFrame);
  while (!done_) {
    Result<std::optional<Frame>> frame = node.link->next(kMaxFrame);
    if (!frame) return fail_all(node.label, frame.error());
    if (!*frame) break;
    if (auto* part = std::get_if<rendezvous::Part>(&**frame)) node.part = std::move(part->key);
    if (std::holds_alternative<rendezvous::NodeReady>(**frame)) node.ready = true;
    if (auto* failed = std::get_if<rendezvous::Failed>(&**frame))
      return fail_all(node.label, std::move(failed->error));
    hub_progress();
  }
  if (done_) return;
  const Status sent = node.link->flush();
  if (!received || !sent)
    fail_all(node.label, Error{Reason::io, "went away before the group was ready", "look at its log"});
}

void Rendezvous::Loop::hub_progress() {
  const auto all = [this](auto&& has) { return std::all_of(nodes_.begin(), nodes_.end(), has); };
  if (!agreed_ && all([](const Node& node) { return node.part.has_value(); })) {
    std::vector<Key> parts;
    std::vector<std::string> labels;
    for (const Node& node : nodes_) {
      parts.push_back(*node.part);
      labels.push_back(node.label);
    }
    Result<Key> key = merge_parts(parts, labels);
    if (!key) return fail_all(options_.label, key.error());
    agreed_ = true;
    to_all(rendezvous::Part{*key});
    handler_(GroupAgreed{std::move(*key)});
  }
  if (agreed_ && all([](const Node& node) { return node.ready; })) {
    to_all(rendezvous::AllReady{});
    finish(GroupReady{});
  }
}

// ---- the others

void Rendezvous::Loop::spoke_turn() {
  if (nodes_[0].link)
    hear_hub();
  else
    connect_to_hub();
}

void Rendezvous::Loop::connect_to_hub() {
  if (!connecting_) {
    if (Clock::now() < next_connect_) return;
    next_connect_ = Clock::now() + kConnectEvery;
    if (Result<Fd> fd = rendezvous::start_connect(options_.master_addr, options_.port))
      connecting_ = std::move(*fd);
    return;
  }
  pollfd ready{connecting_.get(), POLLOUT, 0};
  if (poll(&ready, 1, 0) == 0) return;
  int errnum = 0;
  socklen_t nbytes = sizeof(errnum);
  getsockopt(connecting_.get(), SOL_SOCKET, SO_ERROR, &errnum, &nbytes);
  if (errnum != 0) {
    connecting_.reset();
    return;
  }
  Link link(std::move(connecting_));
  link.send(rendezvous::Join{options_.token, rendezvous::kVersion, options_.node_rank, options_.nnodes,
                             std::string(to_string(options_.role)), options_.label});
  if (nodes_[1].part) link.send(rendezvous::Part{*nodes_[1].part});
  nodes_[0].label = "node 0 at " + options_.master_addr + ":" + std::to_string(options_.port);
  nodes_[0].link = std::move(link);
  if (untold_) fail_all(options_.label, std::move(*untold_));
}

void Rendezvous::Loop::hear_hub() {
  Link& link = *nodes_[0].link;
  const Status received = link.fill(kMaxFrame);
  while (!done_) {
    Result<std::optional<Frame>> frame = link.next(kMaxFrame);
    if (!frame) return fail_all(nodes_[0].label, frame.error());
    if (!*frame) break;
    obey(**frame);
  }
  if (done_) return;
  const Status sent = link.flush();
  if (!received || !sent)
    fail_all(nodes_[0].label,
             Error{Reason::io, "went away before the group was ready",
                   "look at its log; a wrong rendezvous token ends a connection the same way"});
}

void Rendezvous::Loop::obey(rendezvous::Frame& frame) {
  if (auto* part = std::get_if<rendezvous::Part>(&frame)) {
    if (std::exchange(agreed_, true)) return;
    handler_(GroupAgreed{std::move(part->key)});
  } else if (std::holds_alternative<rendezvous::AllReady>(frame)) {
    finish(GroupReady{});
  } else if (auto* failed = std::get_if<rendezvous::Failed>(&frame)) {
    nodes_[0].link.reset();
    fail_all(failed->label, std::move(failed->error));
  }
}

// ---- both

void Rendezvous::Loop::keep_alive() {
  if (Clock::now() < next_alive_) return;
  next_alive_ = Clock::now() + kAliveEvery;
  to_all(rendezvous::Alive{});
}

void Rendezvous::Loop::check_deadlines() {
  const Clock::time_point now = Clock::now();
  for (Node& node : nodes_)
    if (node.link && now - node.link->heard() > options_.silence)
      return fail_all(node.label,
                      Error{Reason::timeout, "fell silent before the group was ready", "look at its log"});
  if (now < deadline_) return;
  if (untold_) return fail_all(options_.label, std::move(*untold_));
  fail_all(missing_nodes(),
           Error{Reason::timeout, "the group was not ready in time",
                 "start every node with the same --nnodes, --master-addr, --master-port and token"});
}

std::string Rendezvous::Loop::missing_nodes() const {
  if (!is_hub())
    return nodes_[0].link
               ? nodes_[0].label
               : "node 0 never answered at " + options_.master_addr + ":" + std::to_string(options_.port);
  std::string out;
  for (std::size_t rank = 0; rank < nodes_.size(); ++rank) {
    const Node& node = nodes_[rank];
    if (node.ready) continue;
    const bool came = rank == 0 || node.link;
    out += (out.empty() ? "" : ", ") +
           (came ? node.label + " is not ready" : "node " + std::to_string(rank) + " never came");
  }
  return out;
}

void Rendezvous::Loop::to_all(const Frame& frame) {
  for (Node& node : nodes_) {
    if (!node.link) continue;
    node.link->send(frame);
    (void)node.link->flush();
  }
}

void Rendezvous::Loop::finish(RendezvousEvent event) {
  done_ = true;
  farewell();
  handler_(std::move(event));
}

void Rendezvous::Loop::fail_all(const std::string& label, Error error) {
  if (done_) return;
  to_all(rendezvous::Failed{label, error});
  error.message = label + ": " + error.message;
  finish(GroupFailed{std::move(error)});
}

/// Lets what is queued go out, for a bounded time, then closes everything.
void Rendezvous::Loop::farewell() {
  const Clock::time_point until = Clock::now() + kFarewell;
  for (Node& node : nodes_) {
    while (node.link && node.link->wants_write() && Clock::now() < until) {
      if (!node.link->flush()) break;
      pollfd fd{node.link->fd(), POLLOUT, 0};
      if (node.link->wants_write()) poll(&fd, 1, 50);
    }
    node.link.reset();
  }
  strangers_.clear();
  listener_.reset();
}

}  // namespace wcache

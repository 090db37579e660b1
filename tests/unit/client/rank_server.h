#pragma once

#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "ipc/client.h"
#include "ipc/listener.h"
#include "ipc/run_dir.h"
#include "tests/support/test_entry.h"

namespace wcache {

/// What a daemon says of the entry it plays.
struct Says {
  State state = State::ready;
  Role role = Role::target;
  std::string name = "tiny";
  std::string fingerprint = {};  ///< empty: the entry's own
  std::string device = "HOST-0";
  bool drop_last_file = false;
  std::uint32_t rank = 0;
  std::string tier = "host";
  std::string ipc_kind = "file";
  std::int32_t pid = 0;  ///< 0: the server's own, plus the rank
  /// A wcachefs instead: the entry's daemon has died, and is asked for by role, fingerprint and rank.
  bool is_mount = false;
};

/// A daemon played by the test: status, descriptors, and a count of who is attached. Connections are served
/// by a thread each.
class RankServer {
 public:
  RankServer(const RunDir& run_dir, test::TestEntry entry, Says says = {})
      : entry_(std::move(entry)),
        says_(std::move(says)),
        listener_(Listener::bind(SocketLock::take(socket_in(run_dir)).value()).value()),
        thread_([this] { run(); }) {}

  ~RankServer() {
    stop_ = true;
    thread_.join();
    for (std::thread& thread : served_) thread.join();
  }

  std::string fingerprint() const { return entry_.directory(); }
  const std::string& socket() const { return listener_.path(); }
  int attached() const { return attached_; }
  int asked_for_status() const { return asked_for_status_; }

  bool attached_becomes(int wanted) const {
    for (int i = 0; i < 1000 && attached_ != wanted; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return attached_ == wanted;
  }

 private:
  std::string socket_in(const RunDir& run_dir) const {
    return says_.is_mount ? run_dir.mount_socket()
                          : run_dir.rank_socket(says_.role, entry_.fingerprint, says_.device);
  }

  void run() {
    while (!stop_) {
      pollfd item{listener_.fd(), POLLIN, 0};
      if (poll(&item, 1, 5) <= 0) continue;
      Result<std::optional<Connection>> connection = listener_.accept();
      if (!connection || !*connection) continue;
      served_.emplace_back([this, peer = std::move(**connection)]() mutable { serve(peer); });
    }
  }

  void serve(Connection& connection) {
    bool client = false;
    bool lease = false;
    while (!stop_) {
      const auto message = connection.receive({}, deadline_in(std::chrono::milliseconds(20)));
      if (!message && message.error().reason == Reason::timeout) continue;
      if (!message || !*message) break;
      const Envelope request = decode((*message)->bytes).value();
      if (const Hello* hello = std::get_if<Hello>(&request.body)) {
        client = hello->purpose == Purpose::client;
        reply(connection, {request.id, HelloReply{kMaxProtocolVersion, getpid()}});
      } else if (std::holds_alternative<StatusRequest>(request.body)) {
        ++asked_for_status_;
        reply(connection, {request.id, status()});
      } else if (const auto* which = std::get_if<SlabRequest>(&request.body)) {
        hand_out_slab(connection, request.id, *which);
      } else {
        hand_out(connection, request.id, std::get<AttachRequest>(request.body));
        lease = client;
        if (lease) ++attached_;
      }
    }
    if (lease) --attached_;
  }

  Body status() const {
    RankStatus rank;
    rank.role = to_string(says_.role);
    rank.name = says_.name;
    rank.fingerprint = says_.fingerprint.empty() ? fingerprint() : says_.fingerprint;
    rank.state = says_.state;
    rank.rank = says_.rank;
    rank.pid =
        says_.pid != 0 ? says_.pid : getpid() + static_cast<std::int32_t>(says_.rank);  // a process each
    rank.socket = listener_.path();
    rank.tier = says_.tier;
    rank.device_uuid = says_.device;
    rank.ipc_kind = says_.ipc_kind;
    rank.tp_size = entry_.plan.tp_size;
    if (says_.state == State::failed) {
      rank.reason = "over-budget";
      rank.message = "needs 9 GiB";
      rank.hint = "raise the limit";
    }
    StatusReply reply;
    reply.pid = getpid();
    if (says_.is_mount) reply.mount.path = "/mnt/wcache";
    reply.ranks.push_back(rank);
    return reply;
  }

  bool is_meant(const std::string& role, const std::string& fingerprint, std::uint32_t rank) const {
    if (!says_.is_mount) return role.empty() && fingerprint.empty();
    return role == to_string(says_.role) && fingerprint == this->fingerprint() && rank == says_.rank;
  }

  void hand_out(Connection& connection, std::uint32_t id, const AttachRequest& which) const {
    if (!is_meant(which.role, which.fingerprint, which.rank))
      return reply(connection, {id, ErrorReply{Error{Reason::not_found, "no such orphan"}}});
    std::vector<int> fds{entry_.arena.manifest.get()};
    for (const Fd& image : entry_.arena.images)
      if (image) fds.push_back(image.get());
    if (says_.drop_last_file) fds.pop_back();
    for (const Fd& slab : entry_.slabs) fds.push_back(slab.get());
    AttachReply head;
    head.manifest_nbytes = entry_.manifest_nbytes;
    head.slabs = static_cast<std::uint32_t>(entry_.slabs.size());
    head.handles = entry_.handles;
    head.instance = entry_.instance;
    (void)send_attachment(connection, id, std::move(head), fds, deadline_in(std::chrono::seconds(5)));
  }

  void hand_out_slab(Connection& connection, std::uint32_t id, const SlabRequest& which) const {
    if (!is_meant(which.role, which.fingerprint, which.rank) || which.slab >= entry_.slabs.size())
      return reply(connection, {id, ErrorReply{Error{Reason::not_found, "no such slab"}}});
    reply(connection, {id, SlabReply{entry_.slab_plan.slabs[which.slab]}}, {entry_.slabs[which.slab].get()});
  }

  static void reply(Connection& connection, const Envelope& envelope, const std::vector<int>& fds = {}) {
    (void)send_message(connection, envelope, deadline_in(std::chrono::seconds(5)), fds);
  }

  const test::TestEntry entry_;
  const Says says_;
  Listener listener_;
  std::atomic<bool> stop_ = false;
  std::atomic<int> attached_ = 0;
  std::atomic<int> asked_for_status_ = 0;
  std::vector<std::thread> served_;  // of thread_ alone until it has ended
  std::thread thread_;
};

}  // namespace wcache

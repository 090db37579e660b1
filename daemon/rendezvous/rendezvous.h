#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <variant>

#include "core/key.h"
#include "core/result.h"

namespace wcache {

/// Where and as whom a node meets the others of its group.
struct RendezvousOptions {
  std::uint32_t nnodes = 2;
  std::uint32_t node_rank = 0;
  std::string master_addr;  ///< numeric address or host name of node 0
  std::uint16_t port = 0;   ///< the group's own port
  std::string token;  ///< shared by all nodes; never empty. Sent in clear: the network is the operator's
  Role role = Role::target;
  std::string label;                           ///< how errors name this node, e.g. "host-b, ranks 2-3"
  std::chrono::milliseconds timeout{600'000};  ///< for the whole group to be ready, from start
  std::chrono::milliseconds silence{10'000};   ///< a node that says nothing for this long is gone
};

/// All nodes hold the same key; it is the group's.
struct GroupAgreed {
  Key key;
};
/// Every rank on every node is ready.
struct GroupReady {};
/// The group is lost, here and on every other node. The message names the node at fault.
struct GroupFailed {
  Error error;
};
using RendezvousEvent = std::variant<GroupAgreed, GroupReady, GroupFailed>;

/// One group's meeting of nodes: node 0 listens on the group's port (the hub), the others connect to it, also
/// when it starts later. Each node contributes what its ranks hold; the hub merges the files of a sharded
/// group, or checks that every node of an unsharded one holds the same, and hands the agreed key back. A node
/// that never comes, disagrees, falls silent or dies fails the group on every node. A connection without the
/// right token is dropped before anything else of it is read, after at most two seconds of silence; it blocks
/// nobody.
///
/// Runs on a thread of its own until ready, failed or destroyed. Events are delivered on that thread:
/// GroupAgreed at most once, then exactly one of GroupReady and GroupFailed. The member functions may be
/// called from any thread, also from the event handler. Destruction before ready tells the others that this
/// node left.
class Rendezvous {
 public:
  using Handler = std::function<void(RendezvousEvent)>;

  /// Node 0 binds before this returns: a port that is taken is an error here (Reason::busy).
  static Result<Rendezvous> start(RendezvousOptions options, Handler handler);

  Rendezvous(Rendezvous&&) noexcept;
  Rendezvous& operator=(Rendezvous&&) noexcept;
  ~Rendezvous();

  /// What this node's ranks hold; once. Files of all its ranks, sorted by name.
  void contribute(Key part);
  /// Every local rank is ready; once, after GroupAgreed.
  void ready();
  /// A local rank failed: the group fails everywhere with this reason.
  void fail_group(Error error);

 private:
  class Loop;
  explicit Rendezvous(std::unique_ptr<Loop> loop);
  std::unique_ptr<Loop> loop_;
};

/// The key of a group from its nodes' parts, in order of node rank; `labels` name them in errors. Sharded
/// layouts: the union of the files, equal names holding equal content (configs). Others: every part must
/// equal the first. Reason::mismatch names the fields or files that differ and the nodes.
Result<Key> merge_parts(const std::vector<Key>& parts, const std::vector<std::string>& labels);

}  // namespace wcache

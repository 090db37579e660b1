#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/key.h"
#include "core/result.h"
#include "daemon/rendezvous/rendezvous.h"
#include "daemon/supervisor/plan.h"
#include "ipc/protocol.h"

namespace wcache {

/// How a group of several ranks or nodes comes to one key and is published as one: this node's ranks say what
/// they hold, that is merged, with several nodes agreed on with the others, and handed to every rank; when
/// all have sealed their memory, on every node, all may publish. One thread, which calls `step` in its loop;
/// what other nodes say waits for it.
class Agreement {
 public:
  /// With several nodes their meeting begins: node 0 listens from here on. busy: its port is taken.
  static Result<std::unique_ptr<Agreement>> start(const GroupPlan& plan, const LaunchPlan& launch);

  /// What a rank says of itself; `rank` counts this node's.
  void add_files(std::size_t rank, GroupFiles page);
  void sealed(std::size_t rank);
  /// This node's ranks are served already, by another launcher's daemons.
  void served();

  /// What has become due; each comes once.
  struct Step {
    std::optional<Key> agreed;  ///< to be told to every rank
    bool published = false;     ///< every rank may publish
    std::optional<Error>
        failed;  ///< the group is lost; with several nodes the message names the one at fault
  };
  Step step();

  /// This node's part of the group is lost: the other nodes are told.
  void fail(const Error& error);

  /// Whether nothing has to be told to, or can come from, other nodes any more.
  bool over() const;

  /// Readable when other nodes have said something; -1 on one node.
  int fd() const;

  /// What it waits for, in words for people; empty while it waits for this node's ranks to be filled.
  std::string waits_for() const;

 private:
  struct Part {
    std::vector<Key::File> files;
    bool complete = false;
    bool sealed = false;
  };
  struct Inbox;

  explicit Agreement(const GroupPlan& plan);
  Result<Key> merge() const;
  void take_events(Step& step);

  Role role_;
  Layout layout_;
  std::uint32_t tp_size_;
  std::vector<std::uint32_t> ranks_;
  std::vector<Part> parts_;  // of ranks_
  bool contributed_ = false;
  bool agreed_ = false;
  bool said_ready_ = false;
  bool published_ = false;
  std::shared_ptr<Inbox> inbox_;       // with several nodes
  std::optional<Rendezvous> meeting_;  // with several nodes; ends before the inbox goes
};

}  // namespace wcache

#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/entry_plan.h"
#include "core/result.h"
#include "daemon/device_entry.h"
#include "ipc/run_dir.h"

namespace wcache {

struct RankPlan {
  std::uint32_t rank = 0;
  std::string device_uuid;            ///< "HOST-0", "GPU-..."
  std::uint64_t memory = 0;           ///< it will take, bytes; 0: not known
  std::uint64_t memory_limit = 0;     ///< what the user leaves it, bytes; 0: no limit
  std::optional<DeviceIpc> ipc = {};  ///< nullopt: host memory
  std::uint64_t device_memory = 0;    ///< that part of `memory` which is the device's
};

/// One group of daemons to start: this node's part of it.
struct GroupPlan {
  Role role = Role::target;
  std::string model;                   ///< MODEL, as the daemons get it
  std::vector<std::string> key_words;  ///< the key options, as the daemons get them
  std::string source;                  ///< absolute path of the checkpoint
  std::string name;                    ///< for by-name/
  std::uint64_t nbytes = 0;            ///< of this node's images, for the first lines of progress
  std::string fingerprint;             ///< known already from the digest cache; else empty
  Layout layout = Layout::checkpoint;
  std::uint32_t tp_size = 1;  ///< of the key: ranks that hold different bytes
  std::vector<RankPlan> ranks;
  std::uint16_t port = 0;        ///< where the nodes of the group meet; 0: there is one node
  std::optional<Error> refusal;  ///< why its daemons cannot be started; others may still serve it

  /// Whether its ranks have to agree on one key before they are published.
  bool grouped() const { return ranks.size() > 1 || port != 0; }
};

/// The nodes that share the groups of a launch.
struct NodesPlan {
  std::uint32_t count = 1;
  std::uint32_t rank = 0;
  std::string master_addr;       ///< of node 0; empty on one node
  std::uint16_t port = 0;        ///< of the target's group; 0 on one node
  std::uint16_t draft_port = 0;  ///< of the draft's group; 0 on one node
  std::string token;             ///< that all nodes know; empty on one node
  bool single() const { return count == 1; }
};

struct MountPlan {
  std::string path;     ///< absolute, symbolic links resolved
  bool chosen = false;  ///< by the user; otherwise a mount that is already there elsewhere is taken as it is
  bool allow_other = false;
};

/// What one launcher is to do.
struct LaunchPlan {
  RunDir run_dir;
  std::vector<GroupPlan> groups;
  std::optional<MountPlan> mount;               ///< nullopt: daemons only
  std::optional<std::chrono::seconds> timeout;  ///< for each group to be ready
  bool device_asked = false;  ///< groups that others serve elsewhere than planned here will not do
  std::optional<DeviceIpc> ipc_asked = {};  ///< groups that others serve by another kind of sharing neither
  std::string log_level;                    ///< handed on to the daemons; empty: theirs
  std::string wcached;                      ///< programs, by path
  std::string wcachefs;
  NodesPlan nodes = {};
};

}  // namespace wcache

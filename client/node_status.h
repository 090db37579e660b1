#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.h"
#include "ipc/deadline.h"
#include "ipc/protocol.h"
#include "ipc/run_dir.h"

namespace wcache {

/// All ranks of one role of one model, as far as anybody on this node knows them.
struct GroupStatus {
  std::string role;
  std::string name;
  std::string fingerprint;  ///< empty until it is known
  State state = State::starting;
  std::string reason, message, hint;  ///< of the first failed rank
  std::string path;                   ///< the directory in the mount; empty while none is shown
  std::string draft, target;  ///< directory of what belongs to it, of the other role, while it is shown
  std::string layout;
  std::string source;
  std::uint64_t nbytes = 0;   ///< of all ranks; once, where each holds the same (`alike`)
  std::uint64_t tensors = 0;  ///< likewise
  std::uint32_t tp_size = 0;
  std::vector<Holder> holders;    ///< sorted by pid, each once
  bool holders_complete = true;   ///< false where somebody's /proc could not be read
  std::vector<RankStatus> ranks;  ///< sorted by rank, one each
  double since = 0;               ///< when `state` began, Unix time

  bool alike() const;  ///< whether its ranks hold the same, each on a device of its own
  std::uint64_t filled() const;
  double rate() const;
};

/// The node at a glance: what the processes of one run directory say of themselves.
struct NodeStatus {
  std::string run_dir;
  std::optional<MountStatus> mount;  ///< nullopt: no wcachefs answers
  std::vector<GroupStatus> groups;   ///< target before draft0, then by name and age
  std::vector<std::int32_t> launchers;
  std::vector<std::string> silent;  ///< sockets that somebody holds and nobody answers at
};

/// What one socket answered.
struct StatusAnswer {
  RunDir::SocketKind kind = RunDir::SocketKind::rank;
  StatusReply reply;
};

/// Puts the answers together. A rank known to several is told by the daemon itself first, then by its
/// launcher, then by the mount. Ranks form a group by role and fingerprint (by source while they have none);
/// where a rank was tried more than once, the record nearest to serving wins, and a failed try is not shown
/// beside a group that serves the source.
NodeStatus merge_status(std::string run_dir, std::vector<StatusAnswer> answers);

/// Asks every socket of the run directory, all at once, each with this deadline. A run directory that is
/// absent is a node with nothing running; one that is not safe to use is an error. Blocks; safe to call from
/// any thread.
Result<NodeStatus> collect_status(std::string_view run_dir,
                                  std::chrono::milliseconds deadline = std::chrono::seconds(2));

/// One socket's answer: all pages of it. not_running when nobody listens.
Result<StatusReply> ask_status(const RunDir::Socket& socket, Deadline deadline);

}  // namespace wcache

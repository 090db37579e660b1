#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "client/node_status.h"
#include "core/fd.h"
#include "ipc/run_dir.h"

namespace wcache {

/// What was seen of the mount, and of the node, at one moment.
struct Sighting {
  bool looked = false;  ///< whether it was looked at all
  std::chrono::steady_clock::time_point began{};
  std::optional<MountStatus> mount;  ///< nullopt: no wcachefs answered
  std::set<std::string>
      visible;  ///< of the entries asked for ("role/fingerprint"): those whose directory is there
  std::optional<NodeStatus> node;  ///< of the whole node, when it was asked for
};

/// A thread that asks wcachefs, and looks at directories of the mount, so that a process that hangs never
/// holds the launcher's loop. Safe for use by one other thread. The destructor waits a little for the thread
/// and then leaves it to itself: a look into a hanging mount ends with the process.
class MountWatcher {
 public:
  explicit MountWatcher(const RunDir& run_dir);
  MountWatcher(const MountWatcher&) = delete;
  MountWatcher& operator=(const MountWatcher&) = delete;
  ~MountWatcher();

  /// Which entries' directories to look for from now on, and whether to ask the whole node; and whether it is
  /// urgent (every 50 ms instead of every second).
  void want(std::vector<std::string> entries, bool node, bool urgent);

  /// The mount is to show that these two belong together; every wcachefs that answers from now on is told.
  void pair(const PairRequest& pair);

  Sighting sighting() const;

  /// Readable when a new sighting is there; `sighting` does not clear it, `clear` does.
  int fd() const;
  void clear() const;

 private:
  struct Shared;
  static void work(std::shared_ptr<Shared> shared);

  std::shared_ptr<Shared> shared_;
};

}  // namespace wcache

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "fs/node.h"
#include "fs/open_mode.h"
#include "fs/tree.h"
#include "ipc/protocol.h"

namespace wcache {

struct OpenFile {
  Node node;
  OpenMode mode = OpenMode::cached;
  bool backed = false;                      ///< counted in Passthrough
  std::shared_ptr<const std::string> text;  ///< for generated files
};

struct OpenDirectory {
  Node node;
  std::shared_ptr<const TreeSnapshot> snapshot;
};

/// The file handles the kernel has, and who else holds an entry through this mount. Safe for concurrent use;
/// no call blocks but `holders`, which reads /proc.
class OpenFiles {
 public:
  explicit OpenFiles(std::function<double()> now) : now_(std::move(now)) {}

  /// `thread` is the opener's, as FUSE reports it.
  std::uint64_t add(OpenFile file, int thread);
  std::shared_ptr<const OpenFile> find(std::uint64_t handle) const;
  std::shared_ptr<const OpenFile> remove(std::uint64_t handle);

  std::uint64_t add_directory(OpenDirectory directory);
  std::shared_ptr<const OpenDirectory> find_directory(std::uint64_t handle) const;
  void remove_directory(std::uint64_t handle);

  /// Finds out which process the opener belongs to, while it can still be told; call it once the open is
  /// answered.
  void identify(std::uint64_t handle);

  /// `holder` holds `entry`, as by an open file, until the last copy of what this gives is gone, which must
  /// be before this object is. It does not keep the entry's memory.
  std::shared_ptr<const void> lease(const std::shared_ptr<const Entry>& entry, Holder holder);

  /// Processes with files of `entry` open or a lease, one row each.
  std::vector<Holder> holders(const Entry& entry);
  std::size_t open_count(const Entry& entry) const;  ///< open files and leases
  std::size_t size() const;

 private:
  struct Row {
    std::shared_ptr<const OpenFile> file;
    int thread = 0;
    int pid = 0;  // 0: not identified yet
    std::string command;
    double since = 0;
  };
  struct Lease {
    const Entry* entry = nullptr;
    std::weak_ptr<const Entry> alive;  // never locked: that could make this the entry's last user
    Holder holder;
    bool of(const Entry& other) const { return entry == &other && !alive.expired(); }
  };
  void identify_row(std::uint64_t handle, int thread);

  std::function<double()> now_;
  mutable std::mutex mutex_;  // a leaf
  std::unordered_map<std::uint64_t, Row> files_;
  std::unordered_map<std::uint64_t, std::shared_ptr<const OpenDirectory>> directories_;
  std::unordered_map<std::uint64_t, Lease> leases_;
  std::uint64_t next_ = 1;
};

/// The process that a thread belongs to, and its command's name; `thread` itself and "" where /proc does not
/// tell.
struct ProcessName {
  int pid = 0;
  std::string command;
};
ProcessName process_of_thread(int thread);

}  // namespace wcache

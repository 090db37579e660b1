#pragma once

#include <cstdint>
#include <memory>

#include "fs/entry.h"

namespace wcache {

enum class NodeKind {
  root,
  readme,
  node_status,  ///< status.json of the root
  role,         ///< target, draft0
  by_name,
  by_name_link,
  directory,  ///< an entry's own (index 0) or one below it
  file,       ///< of the checkpoint
  meta,       ///< .wcache
  fingerprint_json,
  manifest,
  manifest_json,
  entry_status,
  tensors,  ///< .wcache/tensors
  tensor,
};

/// A place in the tree: a value, cheap to copy. It keeps its entry alive.
struct Node {
  NodeKind kind = NodeKind::root;
  std::uint64_t inode = 0;
  Role role = Role::target;      ///< for `role`, `by_name` and everything of an entry
  std::shared_ptr<Entry> entry;  ///< for everything of an entry
  std::uint64_t index = 0;       ///< directory, file or tensor number in the entry

  bool is_directory() const {
    return kind == NodeKind::root || kind == NodeKind::role || kind == NodeKind::by_name ||
           kind == NodeKind::directory || kind == NodeKind::meta || kind == NodeKind::tensors;
  }
  bool is_link() const { return kind == NodeKind::by_name_link; }
  bool is_entry_directory() const { return kind == NodeKind::directory && index == 0; }
  /// Whether what lies in this directory can change while the mount lives.
  bool changes() const { return kind == NodeKind::role || kind == NodeKind::by_name; }
  bool is_status() const { return kind == NodeKind::node_status || kind == NodeKind::entry_status; }
};

/// The inode numbers that exist without any entry; entries begin at kFirstEntryInode.
enum FixedInode : std::uint64_t {
  kRootInode = 1,  // FUSE_ROOT_ID
  kReadmeInode = 2,
  kNodeStatusInode = 3,
  kRoleInode = 4,    // and the next one, by Role
  kByNameInode = 6,  // and the next one, by Role
  kFirstEntryInode = 16,
};

}  // namespace wcache

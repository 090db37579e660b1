#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/digest.h"
#include "fs/entry.h"
#include "fs/node.h"

namespace wcache {

/// One state of the tree. Immutable; whoever holds it sees a consistent listing, however the tree moves on.
class TreeSnapshot {
 public:
  struct Link {
    std::string name;
    std::shared_ptr<Entry> entry;  ///< its newest owner
  };

  /// Entries shown, oldest first.
  const std::vector<std::shared_ptr<Entry>>& entries(Role role) const { return roles_[index(role)].entries; }
  const std::vector<Link>& links(Role role) const { return roles_[index(role)].links; }
  std::shared_ptr<Entry> find(Role role, const Fingerprint& fingerprint) const;
  /// The draft of a target, or the target of a draft, where both are shown; nullptr otherwise.
  std::shared_ptr<Entry> partner(const Entry& entry) const;
  /// When the entries of a role last changed, Unix time in nanoseconds.
  std::int64_t changed_ns(Role role) const { return roles_[index(role)].changed_ns; }

  /// The node of an inode number; none for those of entries that are gone.
  std::optional<Node> node(std::uint64_t inode) const;
  std::optional<Node> lookup(const Node& directory, std::string_view name) const;
  Node parent(const Node& node) const;

  /// Calls `sink` for what is in `directory` after `cookie` (0: from the start), "." and ".." first, until it
  /// answers false. Cookies grow, are never 0, and stay valid for other states of the tree.
  using Sink = std::function<bool(std::string_view name, const Node& node, std::uint64_t cookie)>;
  void list(const Node& directory, std::uint64_t cookie, const Sink& sink) const;

 private:
  friend class Tree;
  struct RoleState {
    std::vector<std::shared_ptr<Entry>> entries;
    std::vector<Link> links;  // by sequence of their owners
    std::int64_t changed_ns = 0;
  };
  static std::size_t index(Role role) { return static_cast<std::size_t>(role); }
  std::optional<Node> lookup_fixed(const Node& directory, std::string_view name) const;
  void list_children(const Node& directory, std::uint64_t cookie, const Sink& sink) const;

  struct Pair {
    Fingerprint target, draft;
    bool operator==(const Pair&) const = default;
  };
  std::array<RoleState, 2> roles_;
  std::vector<Pair> pairs_;  // the last one said counts
};

/// A change of a directory that the kernel may have cached.
struct TreeChange {
  std::uint64_t directory = 0;
  std::string name;
  std::uint64_t removed = 0;  ///< the inode that had the name; 0 when none had
  bool in_use = false;        ///< something below `removed` is open
  bool operator==(const TreeChange&) const = default;
};

/// What the mount shows. Readers take a snapshot and no lock that is held while anything else happens;
/// writers publish a new snapshot and get the changes, which they hand to the notifier afterwards. Safe for
/// concurrent use.
class Tree {
 public:
  explicit Tree(std::function<std::int64_t()> now_ns);

  std::shared_ptr<const TreeSnapshot> snapshot() const;

  /// Shows `entry` (made by Entry::make, not published before) instead of one with the same role and
  /// fingerprint.
  std::vector<TreeChange> publish(const std::shared_ptr<Entry>& entry);
  /// Takes the entry out. Open files of it go on; its other inodes are stale.
  std::vector<TreeChange> withdraw(Role role, const Fingerprint& fingerprint);

  /// These two belong together, whether they are shown yet or not.
  void pair(const Fingerprint& target, const Fingerprint& draft);

 private:
  void replace(std::shared_ptr<const TreeSnapshot> next);
  std::vector<TreeChange> update_links(TreeSnapshot& next, Role role) const;

  std::function<std::int64_t()> now_ns_;
  std::mutex writer_;           // one writer at a time; guards the counters
  mutable std::mutex pointer_;  // guards current_ only; a leaf, held for a copy
  std::shared_ptr<const TreeSnapshot> current_;
  std::uint64_t next_inode_ = kFirstEntryInode;
  std::uint64_t next_sequence_ = 0;
};

}  // namespace wcache

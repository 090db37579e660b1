#include "fs/tree.h"

#include <algorithm>
#include <utility>

namespace wcache {
namespace {

constexpr std::size_t kMaxPairs = 1000;  // what a node serves is a handful; old ones are of no use

void take_out(std::vector<std::shared_ptr<Entry>>& entries, const Entry* gone) {
  std::erase_if(entries, [&](const std::shared_ptr<Entry>& entry) { return entry.get() == gone; });
}

}  // namespace

Tree::Tree(std::function<std::int64_t()> now_ns) : now_ns_(std::move(now_ns)) {
  auto first = std::make_shared<TreeSnapshot>();
  const std::int64_t now = now_ns_();
  for (TreeSnapshot::RoleState& role : first->roles_) role.changed_ns = now;
  current_ = std::move(first);
}

std::shared_ptr<const TreeSnapshot> Tree::snapshot() const {
  const std::lock_guard lock(pointer_);
  return current_;
}

std::vector<TreeChange> Tree::publish(const std::shared_ptr<Entry>& entry) {
  const std::lock_guard lock(writer_);
  auto next = std::make_shared<TreeSnapshot>(*snapshot());
  entry->base_ = next_inode_;
  entry->sequence_ = next_sequence_++;
  next_inode_ += entry->inode_count();

  TreeSnapshot::RoleState& role = next->roles_[TreeSnapshot::index(entry->role())];
  const std::shared_ptr<Entry> before = next->find(entry->role(), entry->fingerprint());
  if (before) take_out(role.entries, before.get());
  role.entries.push_back(entry);
  role.changed_ns = now_ns_();
  std::vector<TreeChange> changes = update_links(*next, entry->role());
  changes.push_back({kRoleInode + TreeSnapshot::index(entry->role()), entry->directory_name(),
                     before ? before->directory_inode(0) : 0});
  replace(std::move(next));
  return changes;
}

std::vector<TreeChange> Tree::withdraw(Role role, const Fingerprint& fingerprint) {
  const std::lock_guard lock(writer_);
  auto next = std::make_shared<TreeSnapshot>(*snapshot());
  const std::shared_ptr<Entry> gone = next->find(role, fingerprint);
  if (!gone) return {};
  TreeSnapshot::RoleState& state = next->roles_[TreeSnapshot::index(role)];
  take_out(state.entries, gone.get());
  state.changed_ns = now_ns_();
  std::vector<TreeChange> changes = update_links(*next, role);
  changes.push_back(
      {kRoleInode + TreeSnapshot::index(role), gone->directory_name(), gone->directory_inode(0)});
  replace(std::move(next));
  return changes;
}

/// The links of `role` as its entries now give them, and what became of those that were there before.
std::vector<TreeChange> Tree::update_links(TreeSnapshot& next, Role role) const {
  TreeSnapshot::RoleState& state = next.roles_[TreeSnapshot::index(role)];
  std::vector<TreeSnapshot::Link> before = std::exchange(state.links, {});
  for (const std::shared_ptr<Entry>& entry : state.entries) {
    if (!entry->has_link()) continue;
    std::erase_if(state.links, [&](const TreeSnapshot::Link& link) { return link.name == entry->name(); });
    state.links.push_back({entry->name(), entry});
  }
  const auto find = [](const std::vector<TreeSnapshot::Link>& links,
                       const std::string& name) -> const Entry* {
    for (const TreeSnapshot::Link& link : links)
      if (link.name == name) return link.entry.get();
    return nullptr;
  };
  std::vector<TreeChange> changes;
  const std::uint64_t directory = kByNameInode + TreeSnapshot::index(role);
  for (const TreeSnapshot::Link& link : before)
    if (find(state.links, link.name) != link.entry.get())
      changes.push_back({directory, link.name, link.entry->base() + Entry::kByNameLink});
  for (const TreeSnapshot::Link& link : state.links)
    if (find(before, link.name) == nullptr) changes.push_back({directory, link.name, 0});
  return changes;
}

void Tree::pair(const Fingerprint& target, const Fingerprint& draft) {
  const std::lock_guard lock(writer_);
  auto next = std::make_shared<TreeSnapshot>(*snapshot());
  const TreeSnapshot::Pair pair{target, draft};
  std::erase(next->pairs_, pair);
  if (next->pairs_.size() >= kMaxPairs) next->pairs_.erase(next->pairs_.begin());
  next->pairs_.push_back(pair);
  replace(std::move(next));
}

void Tree::replace(std::shared_ptr<const TreeSnapshot> next) {
  const std::lock_guard lock(pointer_);
  current_.swap(next);
}

}  // namespace wcache

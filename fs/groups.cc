#include "fs/groups.h"

#include <chrono>
#include <thread>
#include <utility>

namespace wcache {
namespace {

constexpr std::chrono::milliseconds kReleaseWait{200};
constexpr std::chrono::milliseconds kReleaseStep{2};
constexpr std::chrono::seconds kNotifyWait{1};

RankStatus orphan_status(const ManifestView& manifest) {
  const Placement placement = manifest.placement();
  RankStatus status;
  status.role = manifest.role();
  status.name = manifest.name();
  status.fingerprint = to_hex(manifest.fingerprint());
  status.layout = manifest.layout();
  status.source = manifest.source();
  status.state = State::orphaned;
  status.nbytes = manifest.nbytes();
  status.tensors = manifest.tensor_count();
  status.tp_size = manifest.tp_size();
  status.rank = manifest.rank();
  status.node_ranks = manifest.node_ranks();
  status.device_uuid = placement.device_uuid;
  status.tier = placement.tier;
  status.ipc_kind = placement.ipc_kind;
  status.survives = placement.ipc_kind != kIpcLegacy;
  status.filled = status.nbytes;
  return status;
}

}  // namespace

Groups::Groups(Tree& tree, OpenFiles& open_files, Notifier& notifier, Mappings mappings,
               std::function<double()> now)
    : tree_(tree),
      open_files_(open_files),
      notifier_(notifier),
      mappings_(std::move(mappings)),
      now_(std::move(now)) {}

Status Groups::join(Link link, std::shared_ptr<const Part> part) {
  Result<Role> role = role_from_string(part->manifest().role());
  if (!role)
    return fail(Reason::corrupt,
                "the manifest names no role: '" + std::string(part->manifest().role()) + "'");
  const Key key{*role, part->manifest().fingerprint()};
  const std::uint32_t rank = part->manifest().rank();
  const std::uint32_t ranks = part->manifest().node_ranks();

  const std::lock_guard lock(mutex_);
  Group& group = groups_[key];
  std::map<std::uint32_t, Member> before = group.members;
  group.members[rank] = {link, true, now_(), std::move(part)};
  if (group.members.size() >= ranks) {
    if (Status shown = show(group); !shown) {
      group.members = std::move(before);
      if (group.members.empty()) groups_.erase(key);
      return shown;
    }
  }
  if (const auto replaced = before.find(rank); replaced != before.end()) replaced->second.part->lose_daemon();
  return {};
}

Status Groups::show(Group& group) {
  std::vector<std::shared_ptr<const Part>> parts;
  for (const auto& [rank, member] : group.members) parts.push_back(member.part);
  Result<std::shared_ptr<Entry>> entry = Entry::make(std::move(parts), now_());
  if (!entry) return fail(std::move(entry.error()));
  const std::shared_ptr<Entry> before = std::exchange(group.shown, *entry);
  update_state(group);
  tell(tree_.publish(*entry), before.get());
  return {};
}

void Groups::hide(Group& group) {
  const std::shared_ptr<Entry> gone = std::move(group.shown);
  group.shown.reset();
  tell(tree_.withdraw(gone->role(), gone->fingerprint()), gone.get());
}

void Groups::tell(std::vector<TreeChange> changes, const Entry* gone) {
  if (gone != nullptr && open_files_.open_count(*gone) > 0)
    for (TreeChange& change : changes) change.in_use = change.removed == gone->directory_inode(0);
  notifier_.notify(changes);
}

void Groups::update_state(Group& group) {
  bool alive = true;
  for (const auto& [rank, member] : group.members) alive = alive && member.alive;
  if (group.shown) group.shown->set_state(alive ? State::ready : State::orphaned);
}

std::map<Groups::Key, Groups::Group>::iterator Groups::find_link(Link link) {
  for (auto group = groups_.begin(); group != groups_.end(); ++group)
    if (member_of(group->second, link) != nullptr) return group;
  return groups_.end();
}

Groups::Member* Groups::member_of(Group& group, Link link) {
  for (auto& [rank, member] : group.members)
    if (member.link == link) return &member;
  return nullptr;
}

void Groups::lose(Link link) {
  const std::lock_guard lock(mutex_);
  const auto found = find_link(link);
  if (found == groups_.end()) return;
  Group& group = found->second;
  Member& member = *member_of(group, link);
  member.alive = false;
  member.since = now_();
  member.part->lose_daemon();
  if (group.shown) {
    update_state(group);
    return;
  }
  // Never shown: nobody can be using it.
  std::erase_if(group.members, [&](const auto& row) { return row.second.link == link; });
  if (group.members.empty()) groups_.erase(found);
}

WithdrawReply Groups::withdraw(Link link, bool force) {
  if (const std::shared_ptr<Entry> shown = shown_by(link); shown && !force) wait_for_releases(*shown);
  WithdrawReply reply = withdraw_now(link, force);
  if (reply.withdrawn) notifier_.wait_sent(kNotifyWait);
  return reply;
}

/// The kernel tells of a close(2) a moment after it.
void Groups::wait_for_releases(const Entry& entry) const {
  const auto end = std::chrono::steady_clock::now() + kReleaseWait;
  while (open_files_.open_count(entry) > 0 && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(kReleaseStep);
}

std::shared_ptr<Entry> Groups::shown_by(Link link) {
  const std::lock_guard lock(mutex_);
  const auto found = find_link(link);
  return found == groups_.end() ? nullptr : found->second.shown;
}

WithdrawReply Groups::withdraw_now(Link link, bool force) {
  const std::lock_guard lock(mutex_);
  const auto found = find_link(link);
  if (found == groups_.end()) return {true, {}};
  Group& group = found->second;
  if (group.shown) {
    if (!force && open_files_.open_count(*group.shown) > 0) return {false, open_files_.holders(*group.shown)};
    hide(group);
  }
  member_of(group, link)->part->lose_daemon();
  std::erase_if(group.members, [&](const auto& row) { return row.second.link == link || !row.second.alive; });
  if (group.members.empty()) groups_.erase(found);
  return {true, {}};
}

std::vector<Holder> Groups::holders(Link link) {
  const std::shared_ptr<Entry> shown = shown_by(link);
  return shown ? open_files_.holders(*shown) : std::vector<Holder>{};
}

Status Groups::evict_orphan(Role role, const Fingerprint& fingerprint) {
  const std::shared_ptr<Entry> entry = tree_.snapshot()->find(role, fingerprint);
  if (!entry || entry->state() != State::orphaned)
    return fail(Reason::not_found,
                "no orphaned entry " + std::string(to_string(role)) + "/" + to_hex(fingerprint));
  wait_for_releases(*entry);
  if (Status dropped = drop_orphan(*entry, holders_of(*entry, open_files_, mappings_).holders); !dropped)
    return dropped;
  notifier_.wait_sent(kNotifyWait);
  return {};
}

Status Groups::drop_orphan(const Entry& entry, const std::vector<Holder>& holders) {
  const std::lock_guard lock(mutex_);
  const auto found = groups_.find({entry.role(), entry.fingerprint()});
  if (found == groups_.end() || found->second.shown.get() != &entry || entry.state() != State::orphaned)
    return fail(Reason::not_found, entry.path() + " is no orphaned entry any more");
  if (open_files_.open_count(entry) > 0 || !holders.empty()) {
    std::string message = entry.path() + " is held by";
    for (const Holder& holder : holders)
      message += " " + std::to_string(holder.pid) + " (" + holder.command + ")";
    return fail(Reason::busy, std::move(message), "stop what uses it");
  }
  hide(found->second);
  std::erase_if(found->second.members, [](const auto& row) { return !row.second.alive; });
  if (found->second.members.empty()) groups_.erase(found);
  return {};
}

Result<Groups::Orphan> Groups::hold_orphan(Role role, const Fingerprint& fingerprint, std::uint32_t rank,
                                           Holder holder) {
  const std::string name = std::string(to_string(role)) + "/" + to_hex(fingerprint);
  const std::lock_guard lock(mutex_);
  const auto group = groups_.find({role, fingerprint});
  if (group == groups_.end() || !group->second.shown)
    return fail(Reason::not_found, "no orphaned entry " + name);
  const auto member = group->second.members.find(rank);
  if (member == group->second.members.end() || member->second.alive)
    return fail(Reason::not_found, "rank " + std::to_string(rank) + " of " + name + " is not orphaned");
  const std::shared_ptr<const Part>& part = member->second.part;
  if (part->manifest().placement().ipc_kind == kIpcLegacy)
    return fail(Reason::not_running, "the device memory of " + name + " went with its daemon",
                "evict it, and preload it again");
  holder.since = now_();
  return Orphan{part, open_files_.lease(group->second.shown, std::move(holder))};
}

std::vector<RankStatus> Groups::orphans() {
  std::vector<Group> orphaned;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, group] : groups_)
      if (group.shown && group.shown->state() == State::orphaned) orphaned.push_back(group);
  }
  std::vector<RankStatus> statuses;
  for (const Group& group : orphaned) {
    const EntryHolders held = holders_of(*group.shown, open_files_, mappings_);
    for (const auto& [rank, member] : group.members) {
      if (member.alive) continue;
      RankStatus status = orphan_status(member.part->manifest());
      if (!member.part->slabs().empty()) status.device_nbytes = member.part->slabs_nbytes();
      status.holders = held.holders;
      status.holders_complete = held.complete;
      status.since = member.since;
      statuses.push_back(std::move(status));
    }
  }
  return statuses;
}

}  // namespace wcache

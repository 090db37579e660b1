#include <algorithm>

#include "fs/tensor_name.h"
#include "fs/tree.h"

namespace wcache {
namespace {

struct FixedChild {
  std::string_view name;
  NodeKind kind;
  std::uint64_t inode;  // absolute, or a slot of the entry
  Role role = Role::target;
};

constexpr std::array kRootChildren{
    FixedChild{"README", NodeKind::readme, kReadmeInode},
    FixedChild{"status.json", NodeKind::node_status, kNodeStatusInode},
    FixedChild{"target", NodeKind::role, kRoleInode, Role::target},
    FixedChild{"draft0", NodeKind::role, kRoleInode + 1, Role::draft0},
};
constexpr std::array kMetaChildren{
    FixedChild{"fingerprint.json", NodeKind::fingerprint_json, Entry::kFingerprintJson},
    FixedChild{"manifest", NodeKind::manifest, Entry::kManifest},
    FixedChild{"manifest.json", NodeKind::manifest_json, Entry::kManifestJson},
    FixedChild{"status.json", NodeKind::entry_status, Entry::kStatusJson},
    FixedChild{"tensors", NodeKind::tensors, Entry::kTensors},
};
constexpr std::string_view kByName = "by-name";
constexpr std::string_view kMeta = ".wcache";

// Cookies: 1 and 2 are "." and "..", kFirstCookie is the first child's that is always there.
constexpr std::uint64_t kFirstCookie = 3;
constexpr std::uint64_t kFirstEntryCookie = 16;

std::uint64_t role_offset(Role role) {
  return static_cast<std::uint64_t>(role);
}

Node root_node() {
  return {NodeKind::root, kRootInode, Role::target, nullptr, 0};
}
Node role_node(Role role) {
  return {NodeKind::role, kRoleInode + role_offset(role), role, nullptr, 0};
}
Node by_name_node(Role role) {
  return {NodeKind::by_name, kByNameInode + role_offset(role), role, nullptr, 0};
}

Node slot_node(NodeKind kind, const std::shared_ptr<Entry>& entry, std::uint64_t slot) {
  return {kind, entry->base() + slot, entry->role(), entry, 0};
}
Node directory_node(const std::shared_ptr<Entry>& entry, std::uint32_t index) {
  return {NodeKind::directory, entry->directory_inode(index), entry->role(), entry, index};
}
Node file_node(const std::shared_ptr<Entry>& entry, std::uint32_t index) {
  return {NodeKind::file, entry->file_inode(index), entry->role(), entry, index};
}
Node tensor_node(const std::shared_ptr<Entry>& entry, std::uint64_t number) {
  return {NodeKind::tensor, entry->tensor_inode(number), entry->role(), entry, number};
}
Node child_node(const std::shared_ptr<Entry>& entry, const Entry::Child& child) {
  return child.is_directory ? directory_node(entry, child.index) : file_node(entry, child.index);
}

Node node_in_entry(const std::shared_ptr<Entry>& entry, std::uint64_t offset) {
  switch (offset) {
    case Entry::kRoot:
      return directory_node(entry, 0);
    case Entry::kByNameLink:
      return slot_node(NodeKind::by_name_link, entry, offset);
    case Entry::kMeta:
      return slot_node(NodeKind::meta, entry, offset);
    default:
      break;
  }
  for (const FixedChild& child : kMetaChildren)
    if (child.inode == offset) return slot_node(child.kind, entry, offset);
  if (offset < entry->first_file())
    return directory_node(entry, static_cast<std::uint32_t>(offset - Entry::kFixed + 1));
  if (offset < entry->first_tensor())
    return file_node(entry, static_cast<std::uint32_t>(offset - entry->first_file()));
  return tensor_node(entry, offset - entry->first_tensor());
}

std::optional<Node> lookup_child(const Node& directory, std::string_view name) {
  const std::vector<Entry::Child>& children = directory.entry->directories()[directory.index].children;
  const auto found = std::lower_bound(
      children.begin(), children.end(), name,
      [](const Entry::Child& child, std::string_view wanted) { return child.name < wanted; });
  if (found == children.end() || found->name != name) return std::nullopt;
  return child_node(directory.entry, *found);
}

std::optional<Node> lookup_tensor(const Node& directory, std::string_view file_name) {
  const std::optional<std::string> name = unescape_tensor_name(file_name);
  if (!name) return std::nullopt;
  const std::optional<std::uint64_t> number = directory.entry->find_tensor(*name);
  if (!number) return std::nullopt;
  return tensor_node(directory.entry, *number);
}

void list_tensors(const std::shared_ptr<Entry>& entry, std::uint64_t after, const TreeSnapshot::Sink& sink) {
  const bool one_part = entry->parts().size() == 1;
  for (std::uint64_t number = after < kFirstCookie ? 0 : after - kFirstCookie + 1;
       number < entry->tensor_count(); ++number) {
    const std::optional<ManifestView::Tensor> tensor = entry->tensor(number);
    if (!tensor) continue;
    const std::optional<std::string> name = escape_tensor_name(tensor->name);
    if (!name || (!one_part && entry->find_tensor(tensor->name) != number)) continue;
    if (!sink(*name, tensor_node(entry, number), kFirstCookie + number)) return;
  }
}

}  // namespace

std::shared_ptr<Entry> TreeSnapshot::find(Role role, const Fingerprint& fingerprint) const {
  for (const std::shared_ptr<Entry>& entry : entries(role))
    if (entry->fingerprint() == fingerprint) return entry;
  return nullptr;
}

std::shared_ptr<Entry> TreeSnapshot::partner(const Entry& entry) const {
  const bool is_target = entry.role() == Role::target;
  for (auto pair = pairs_.rbegin(); pair != pairs_.rend(); ++pair) {
    if ((is_target ? pair->target : pair->draft) != entry.fingerprint()) continue;
    if (auto other = is_target ? find(Role::draft0, pair->draft) : find(Role::target, pair->target))
      return other;
  }
  return nullptr;
}

std::optional<Node> TreeSnapshot::node(std::uint64_t inode) const {
  if (inode == kRootInode) return root_node();
  for (const FixedChild& child : kRootChildren)
    if (child.inode == inode) return Node{child.kind, inode, child.role, nullptr, 0};
  for (const Role role : {Role::target, Role::draft0})
    if (inode == kByNameInode + role_offset(role)) return by_name_node(role);
  for (const RoleState& role : roles_)
    for (const std::shared_ptr<Entry>& entry : role.entries)
      if (inode >= entry->base() && inode - entry->base() < entry->inode_count())
        return node_in_entry(entry, inode - entry->base());
  return std::nullopt;
}

std::optional<Node> TreeSnapshot::lookup(const Node& directory, std::string_view name) const {
  switch (directory.kind) {
    case NodeKind::root:
    case NodeKind::role:
    case NodeKind::by_name:
      return lookup_fixed(directory, name);
    case NodeKind::directory:
      if (directory.index == 0 && name == kMeta)
        return slot_node(NodeKind::meta, directory.entry, Entry::kMeta);
      return lookup_child(directory, name);
    case NodeKind::meta:
      for (const FixedChild& child : kMetaChildren)
        if (child.name == name) return slot_node(child.kind, directory.entry, child.inode);
      return std::nullopt;
    case NodeKind::tensors:
      return lookup_tensor(directory, name);
    default:
      return std::nullopt;
  }
}

std::optional<Node> TreeSnapshot::lookup_fixed(const Node& directory, std::string_view name) const {
  if (directory.kind == NodeKind::root) {
    for (const FixedChild& child : kRootChildren)
      if (child.name == name) return Node{child.kind, child.inode, child.role, nullptr, 0};
    return std::nullopt;
  }
  if (directory.kind == NodeKind::by_name) {
    for (const Link& link : links(directory.role))
      if (link.name == name) return slot_node(NodeKind::by_name_link, link.entry, Entry::kByNameLink);
    return std::nullopt;
  }
  if (name == kByName) return by_name_node(directory.role);
  for (const std::shared_ptr<Entry>& entry : entries(directory.role))
    if (entry->directory_name() == name) return directory_node(entry, 0);
  return std::nullopt;
}

Node TreeSnapshot::parent(const Node& node) const {
  switch (node.kind) {
    case NodeKind::root:
    case NodeKind::readme:
    case NodeKind::node_status:
    case NodeKind::role:
      return root_node();
    case NodeKind::by_name:
      return role_node(node.role);
    case NodeKind::by_name_link:
      return by_name_node(node.role);
    case NodeKind::directory:
      return node.index == 0 ? role_node(node.role)
                             : directory_node(node.entry, node.entry->directories()[node.index].parent);
    case NodeKind::file:
      return directory_node(node.entry, node.entry->files()[node.index].parent);
    case NodeKind::meta:
      return directory_node(node.entry, 0);
    case NodeKind::tensor:
      return slot_node(NodeKind::tensors, node.entry, Entry::kTensors);
    default:
      return slot_node(NodeKind::meta, node.entry, Entry::kMeta);
  }
}

void TreeSnapshot::list(const Node& directory, std::uint64_t cookie, const Sink& sink) const {
  if (cookie < 1 && !sink(".", directory, 1)) return;
  if (cookie < 2 && !sink("..", parent(directory), 2)) return;
  if (directory.kind == NodeKind::tensors)
    list_tensors(directory.entry, cookie, sink);
  else
    list_children(directory, cookie, sink);
}

void TreeSnapshot::list_children(const Node& directory, std::uint64_t cookie, const Sink& sink) const {
  const auto give = [&](std::string_view name, const Node& node, std::uint64_t own_cookie) {
    return own_cookie <= cookie || sink(name, node, own_cookie);
  };
  std::uint64_t next = kFirstCookie;
  if (directory.kind == NodeKind::root) {
    for (const FixedChild& child : kRootChildren)
      if (!give(child.name, {child.kind, child.inode, child.role, nullptr, 0}, next++)) return;
  } else if (directory.kind == NodeKind::role) {
    if (!give(kByName, by_name_node(directory.role), next)) return;
    for (const std::shared_ptr<Entry>& entry : entries(directory.role))
      if (!give(entry->directory_name(), directory_node(entry, 0), kFirstEntryCookie + entry->sequence()))
        return;
  } else if (directory.kind == NodeKind::by_name) {
    for (const Link& link : links(directory.role))
      if (!give(link.name, slot_node(NodeKind::by_name_link, link.entry, Entry::kByNameLink),
                kFirstEntryCookie + link.entry->sequence()))
        return;
  } else if (directory.kind == NodeKind::meta) {
    for (const FixedChild& child : kMetaChildren)
      if (!give(child.name, slot_node(child.kind, directory.entry, child.inode), next++)) return;
  } else if (directory.kind == NodeKind::directory) {
    if (directory.index == 0 &&
        !give(kMeta, slot_node(NodeKind::meta, directory.entry, Entry::kMeta), next++))
      return;
    for (const Entry::Child& child : directory.entry->directories()[directory.index].children)
      if (!give(child.name, child_node(directory.entry, child), next++)) return;
  }
}

}  // namespace wcache

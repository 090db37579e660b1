#include "fs/node_stat.h"

#include "fs/texts.h"

namespace wcache {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
constexpr mode_t kDirectoryMode = S_IFDIR | 0555;
constexpr mode_t kFileMode = S_IFREG | 0444;
constexpr mode_t kLinkMode = S_IFLNK | 0777;

std::uint64_t size_of(const Node& node, const StatContext& context) {
  switch (node.kind) {
    case NodeKind::readme:
      return readme_text().size();
    case NodeKind::node_status:
    case NodeKind::entry_status:
      return context.status_nbytes;
    case NodeKind::by_name_link:
      return sizeof("../") - 1 + node.entry->directory_name().size();
    case NodeKind::file:
      return node.entry->row_of(node.entry->files()[node.index]).nbytes;
    case NodeKind::fingerprint_json:
      return node.entry->fingerprint_json()->size();
    case NodeKind::manifest:
      return node.entry->parts().front()->manifest_bytes().size();
    case NodeKind::manifest_json:
      return node.entry->manifest_json_nbytes();
    case NodeKind::tensor: {
      const auto tensor = node.entry->tensor(node.index);
      return tensor ? tensor->nbytes : 0;
    }
    default:
      return 0;
  }
}

std::int64_t mtime_of(const Node& node, const TreeSnapshot& tree, const StatContext& context) {
  switch (node.kind) {
    case NodeKind::role:
    case NodeKind::by_name:
      return tree.changed_ns(node.role);
    case NodeKind::file:
      return node.entry->row_of(node.entry->files()[node.index]).mtime_ns;
    case NodeKind::entry_status:
    case NodeKind::by_name_link:
      return static_cast<std::int64_t>(node.entry->since() * static_cast<double>(kSecond));
    default:
      return node.entry ? node.entry->mtime_ns() : context.started_ns;
  }
}

/// Sub-directories of a directory, as st_nlink counts them.
nlink_t links_of(const Node& node, const TreeSnapshot& tree) {
  switch (node.kind) {
    case NodeKind::root:
      return 2 + 2;
    case NodeKind::role:
      return 2 + 1 + tree.entries(node.role).size();
    case NodeKind::meta:
      return 2 + 1;
    case NodeKind::directory: {
      nlink_t count = node.index == 0 ? 2 + 1 : 2;
      for (const Entry::Child& child : node.entry->directories()[node.index].children)
        count += child.is_directory ? 1 : 0;
      return count;
    }
    default:
      return node.is_directory() ? 2 : 1;
  }
}

}  // namespace

struct stat stat_of(const Node& node, const TreeSnapshot& tree, const StatContext& context) {
  struct stat st {};
  st.st_ino = node.inode;
  st.st_mode = node.is_directory() ? kDirectoryMode : node.is_link() ? kLinkMode : kFileMode;
  st.st_nlink = links_of(node, tree);
  st.st_uid = context.uid;
  st.st_gid = context.gid;
  const std::uint64_t nbytes = size_of(node, context);
  st.st_size = static_cast<off_t>(nbytes);
  st.st_blocks = static_cast<blkcnt_t>((nbytes + 511) / 512);
  st.st_blksize = 4096;
  std::int64_t mtime = mtime_of(node, tree, context);
  if (mtime < 0) mtime = 0;
  st.st_mtim = {static_cast<time_t>(mtime / kSecond), static_cast<long>(mtime % kSecond)};
  st.st_atim = st.st_mtim;
  st.st_ctim = st.st_mtim;
  return st;
}

}  // namespace wcache

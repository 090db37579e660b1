#include "fs/file_system.h"

#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "fs/capabilities.h"
#include "fs/texts.h"
#include "fs/xattrs.h"

namespace wcache {
namespace {

// Seconds. What belongs to an entry never changes; what is between the entries is told to the kernel when it
// changes, and asked for again soon should that fail.
constexpr double kForever = 365.0 * 24 * 3600;
constexpr double kSoon = 1;
constexpr double kNever = 0;

constexpr int kGone = ESTALE;  // an inode of an entry that is gone: the kernel walks the path again

constexpr std::size_t kMaxListing = std::size_t{1} << 20;  // bytes of one readdir reply
constexpr unsigned long kBlock = 4096;

double name_timeout(const Node& node) {
  return node.is_entry_directory() || node.is_link() ? kSoon : kForever;
}

double attr_timeout(const Node& node) {
  if (node.is_status()) return kNever;
  // The root's too, so that stat(2) soon tells when the server is gone.
  return node.changes() || node.kind == NodeKind::root ? kSoon : kForever;
}

std::shared_ptr<const std::string> share_text(std::string text) {
  return std::make_shared<const std::string>(std::move(text));
}

/// What a read of a file that is not generated is answered from.
std::span<const std::byte> bytes_of(const Node& node) {
  const Entry& entry = *node.entry;
  if (node.kind == NodeKind::manifest) return entry.parts().front()->manifest_bytes();
  if (node.kind == NodeKind::file) {
    const Entry::File& file = entry.files()[node.index];
    return entry.part_of(file).image_bytes(file.row);
  }
  const std::optional<ManifestView::Tensor> tensor = entry.tensor(node.index);
  if (node.kind != NodeKind::tensor || !tensor) return {};
  const Part& part = *entry.parts()[entry.tensor_ref(node.index).part];
  if (tensor->file >= part.manifest().file_count()) return {};
  const std::span<const std::byte> image = part.image_bytes(tensor->file);
  if (tensor->offset > image.size() || tensor->nbytes > image.size() - tensor->offset) return {};
  return image.subspan(tensor->offset, tensor->nbytes);
}

/// A run of a file that is on a device, and whose daemon to ask for it.
struct DeviceRun {
  const Part* part = nullptr;
  std::uint32_t row = 0;
  std::uint64_t offset = 0;  ///< in the file
  std::uint64_t nbytes = 0;
};

/// The same run of the same file where a daemon still is, if another device has it.
DeviceRun with_daemon(const Entry& entry, DeviceRun run) {
  if (run.part->has_daemon()) return run;
  const std::string_view name = run.part->manifest().file(run.row)->name;
  for (const auto& part : entry.parts()) {
    const std::optional<std::size_t> row = part->manifest().find_file(name);
    if (!row || !part->on_device(*row) || !part->has_daemon()) continue;
    return {part.get(), static_cast<std::uint32_t>(*row), run.offset, run.nbytes};
  }
  return run;
}

/// Where the bytes of `node` are, if that is on a device.
std::optional<DeviceRun> device_run(const Node& node) {
  const Entry* const entry = node.entry.get();
  if (node.kind == NodeKind::file) {
    const Entry::File& file = entry->files()[node.index];
    const Part& part = entry->part_of(file);
    if (!part.on_device(file.row)) return std::nullopt;
    return with_daemon(*entry, {&part, file.row, 0, entry->row_of(file).nbytes});
  }
  if (node.kind != NodeKind::tensor) return std::nullopt;
  const std::optional<ManifestView::Tensor> tensor = entry->tensor(node.index);
  const Part& part = *entry->parts()[entry->tensor_ref(node.index).part];
  if (!tensor || !part.on_device(tensor->file)) return std::nullopt;
  return with_daemon(*entry, {&part, tensor->file, tensor->offset, tensor->nbytes});
}

int backing_of(const Node& node) {
  const Entry& entry = *node.entry;
  if (node.kind == NodeKind::manifest) return entry.parts().front()->manifest_fd();
  const Entry::File& file = entry.files()[node.index];
  return entry.part_of(file).image_fd(file.row);
}

}  // namespace

FileSystem::FileSystem(Settings settings, Tree& tree, OpenFiles& open_files, Passthrough& passthrough,
                       StatusThread& status, Mappings mappings, spdlog::logger& log)
    : settings_(std::move(settings)),
      tree_(tree),
      open_files_(open_files),
      passthrough_(passthrough),
      status_(status),
      mappings_(std::move(mappings)),
      log_(log) {}

void FileSystem::init(fuse_conn_info& conn) {
  const Negotiated negotiated = negotiate_capabilities(conn);
  direct_mmap_ = negotiated.direct_mmap;
  passthrough_.offer(Passthrough::negotiate(conn));
  log_.info("FUSE {}", negotiated.summary);
  initialised_.store(true, std::memory_order_release);
}

std::string FileSystem::entry_status(const Entry& entry, const std::vector<Holder>& holders) {
  return entry_status_text(entry, tree_.snapshot()->partner(entry).get(), holders, settings_.mount);
}

struct stat FileSystem::stat_of_node(const Node& node, const TreeSnapshot& tree) {
  StatContext context{settings_.uid, settings_.gid, settings_.started_ns, 0};
  if (node.kind == NodeKind::node_status) context.status_nbytes = status_.last_nbytes();
  if (node.kind == NodeKind::entry_status)
    context.status_nbytes = entry_status(*node.entry, open_files_.holders(*node.entry)).size();
  return stat_of(node, tree, context);
}

fuse_entry_param FileSystem::entry_of(const Node& node, const TreeSnapshot& tree) {
  fuse_entry_param entry{};
  entry.ino = node.inode;
  entry.attr = stat_of_node(node, tree);
  entry.attr_timeout = attr_timeout(node);
  entry.entry_timeout = name_timeout(node);
  return entry;
}

void FileSystem::lookup(Request request, fuse_ino_t parent, const char* name) {
  const std::shared_ptr<const TreeSnapshot> tree = tree_.snapshot();
  const std::optional<Node> directory = tree->node(parent);
  if (!directory) {
    request.error(kGone);
    return;
  }
  const std::optional<Node> node = tree->lookup(*directory, name);
  if (!node) {
    // Absent for ever in what never changes: engines probe for many files that a checkpoint has not.
    fuse_entry_param absent{};
    absent.entry_timeout = directory->entry ? kForever : kNever;
    if (directory->entry)
      request.entry(absent);
    else
      request.error(ENOENT);
    return;
  }
  const fuse_entry_param entry = entry_of(*node, *tree);
  request.entry(entry);
}

// Nodes are values of the tree, and inode numbers are never used twice: what the kernel still remembers is no
// matter.
void FileSystem::forget(Request request, fuse_ino_t, std::uint64_t) {
  request.none();
}

void FileSystem::forget_multi(Request request, std::size_t, fuse_forget_data*) {
  request.none();
}

void FileSystem::getattr(Request request, fuse_ino_t inode, fuse_file_info* file) {
  const std::shared_ptr<const TreeSnapshot> tree = tree_.snapshot();
  std::optional<Node> node = tree->node(inode);
  if (!node && file != nullptr)  // fstat of a file whose entry is gone
    if (const std::shared_ptr<const OpenFile> opened = open_files_.find(file->fh)) node = opened->node;
  if (!node)
    request.error(kGone);
  else
    request.attr(stat_of_node(*node, *tree), attr_timeout(*node));
}

void FileSystem::readlink(Request request, fuse_ino_t inode) {
  const std::optional<Node> node = tree_.snapshot()->node(inode);
  if (!node || !node->is_link())
    request.error(node ? EINVAL : kGone);
  else
    request.link(("../" + node->entry->directory_name()).c_str());
}

void FileSystem::access(Request request, fuse_ino_t inode, int mask) {
  const std::optional<Node> node = tree_.snapshot()->node(inode);
  if (!node)
    request.error(kGone);
  else if ((mask & W_OK) != 0)
    request.error(EROFS);
  else
    request.error((mask & X_OK) != 0 && !node->is_directory() ? EACCES : 0);
}

void FileSystem::statfs(Request request, fuse_ino_t) {
  const std::shared_ptr<const TreeSnapshot> tree = tree_.snapshot();
  struct statvfs st {};
  st.f_bsize = kBlock;
  st.f_frsize = kBlock;
  st.f_namemax = 255;
  st.f_flag = ST_RDONLY | ST_NOSUID;
  for (const Role role : {Role::target, Role::draft0})
    for (const auto& entry : tree->entries(role)) {
      st.f_blocks += (entry->nbytes() + kBlock - 1) / kBlock;
      st.f_files += entry->inode_count();
    }
  request.statfs(st);
}

void FileSystem::open(Request request, fuse_ino_t inode, fuse_file_info* info) {
  fuse_file_info file = *info;
  const std::optional<Node> found = tree_.snapshot()->node(inode);
  if (!found || found->is_directory()) {
    request.error(found ? EISDIR : kGone);
    return;
  }
  if ((file.flags & O_ACCMODE) != O_RDONLY || (file.flags & O_TRUNC) != 0) {
    request.error(EROFS);
    return;
  }
  const Node& node = *found;
  switch (node.kind) {
    case NodeKind::readme:
      open_text(std::move(request), node, file, share_text(std::string(readme_text())));
      return;
    case NodeKind::fingerprint_json:
      open_text(std::move(request), node, file, node.entry->fingerprint_json());
      return;
    case NodeKind::manifest_json:
      open_text(std::move(request), node, file, node.entry->manifest_json());
      return;
    case NodeKind::entry_status:
      later(std::move(request), [this, node, file](Request asked) {
        const EntryHolders held = holders(*node.entry);
        open_text(std::move(asked), node, file, share_text(entry_status(*node.entry, held.holders)));
      });
      return;
    case NodeKind::node_status: {
      // std::function must be copyable, a request must not.
      auto waiting = std::make_shared<Request>(std::move(request));
      status_.ask([this, waiting, node, file](std::shared_ptr<const std::string> text) {
        if (text)
          open_text(std::move(*waiting), node, file, std::move(text));
        else
          waiting->error(EIO);
      });
      return;
    }
    default:
      break;
  }
  const ServingCaps caps{passthrough_.available() && !device_run(node), direct_mmap_};
  OpenFile opened{node, open_mode(node.kind, caps), false, nullptr};
  if (opened.mode == OpenMode::passthrough) {
    opened.backed = true;
    const int id = passthrough_.acquire(node.inode, backing_of(node));
    if (id > 0)
      Passthrough::set_backing(file, id);
    else
      opened.mode = open_mode(node.kind, {false, caps.direct_mmap});
  }
  reply_open(std::move(request), std::move(opened), file);
}

void FileSystem::open_text(Request request, const Node& node, fuse_file_info file,
                           std::shared_ptr<const std::string> text) {
  reply_open(std::move(request), {node, open_mode(node.kind, {false, direct_mmap_}), false, std::move(text)},
             file);
}

void FileSystem::reply_open(Request request, OpenFile opened, fuse_file_info file) {
  const OpenMode mode = opened.mode;
  const bool backed = opened.backed;
  const std::uint64_t inode = opened.node.inode;
  file.direct_io = mode == OpenMode::direct;
  file.keep_cache = mode == OpenMode::cached;
  file.noflush = 1;
  file.fh = open_files_.add(std::move(opened), request.thread());
  const std::uint64_t handle = file.fh;
  if (request.open(file)) {
    open_files_.identify(handle);
    return;
  }
  open_files_.remove(handle);
  if (backed) passthrough_.release(inode);
}

void FileSystem::read(Request request, fuse_ino_t, std::size_t size, off_t offset, fuse_file_info* file) {
  const std::shared_ptr<const OpenFile> opened = open_files_.find(file->fh);
  if (!opened) {
    request.error(EBADF);
    return;
  }
  if (const std::optional<DeviceRun> run = device_run(opened->node)) {
    const std::uint64_t begin = std::min(static_cast<std::uint64_t>(offset), run->nbytes);
    const std::size_t nbytes = std::min<std::uint64_t>(size, run->nbytes - begin);
    return read_device(std::move(request), *run->part, run->row, run->offset + begin, nbytes);
  }
  const std::span<const std::byte> bytes =
      opened->text ? std::as_bytes(std::span(opened->text->data(), opened->text->size()))
                   : bytes_of(opened->node);
  const std::size_t begin = std::min(static_cast<std::size_t>(offset), bytes.size());
  request.bytes(bytes.subspan(begin, std::min(size, bytes.size() - begin)));
}

void FileSystem::read_device(Request request, const Part& part, std::uint32_t row, std::uint64_t offset,
                             std::size_t nbytes) {
  if (nbytes == 0) {
    request.bytes(std::string_view());
    return;
  }
  if (device_reads_.closed()) {
    request.error(EIO);
    return;
  }
  // std::function must be copyable, a request must not. Nothing here may keep the part: its end waits for
  // this.
  auto waiting = std::make_shared<Request>(std::move(request));
  part.read(row, offset, nbytes,
            [waiting, counted = device_reads_.begin()](const Result<std::span<const std::byte>>& bytes) {
              const bool given = counted->give([&] {
                if (bytes)
                  waiting->bytes(*bytes);
                else
                  waiting->error(EIO);
              });
              if (!given) waiting->abandon();
            });
}

void FileSystem::release(Request request, fuse_ino_t inode, fuse_file_info* file) {
  const std::shared_ptr<const OpenFile> opened = open_files_.remove(file->fh);
  if (opened && opened->backed) passthrough_.release(inode);
  request.ok();
}

void FileSystem::opendir(Request request, fuse_ino_t inode, fuse_file_info* info) {
  std::shared_ptr<const TreeSnapshot> tree = tree_.snapshot();
  std::optional<Node> node = tree->node(inode);
  if (!node || !node->is_directory()) {
    request.error(node ? ENOTDIR : kGone);
    return;
  }
  fuse_file_info file = *info;
  file.cache_readdir = node->entry ? 1 : 0;
  file.keep_cache = node->entry ? 1 : 0;
  file.noflush = 1;
  file.fh = open_files_.add_directory({std::move(*node), std::move(tree)});
  const std::uint64_t handle = file.fh;
  if (!request.open(file)) open_files_.remove_directory(handle);
}

void FileSystem::readdir(Request request, fuse_ino_t, std::size_t size, off_t cookie, fuse_file_info* file) {
  const std::shared_ptr<const OpenDirectory> open = open_files_.find_directory(file->fh);
  if (!open) {
    request.error(EBADF);
    return;
  }
  std::vector<char> buffer(std::min(size, kMaxListing));
  std::size_t used = 0;
  open->snapshot->list(open->node, static_cast<std::uint64_t>(cookie),
                       [&](std::string_view name, const Node& node, std::uint64_t next) {
                         struct stat st {};
                         st.st_ino = node.inode;
                         st.st_mode = node.is_directory() ? S_IFDIR : node.is_link() ? S_IFLNK : S_IFREG;
                         const std::size_t need =
                             fuse_add_direntry(request.raw(), buffer.data() + used, buffer.size() - used,
                                               std::string(name).c_str(), &st, static_cast<off_t>(next));
                         if (need > buffer.size() - used) return false;
                         used += need;
                         return true;
                       });
  request.bytes(std::string_view(buffer.data(), used));
}

void FileSystem::readdirplus(Request request, fuse_ino_t, std::size_t size, off_t cookie,
                             fuse_file_info* file) {
  const std::shared_ptr<const OpenDirectory> open = open_files_.find_directory(file->fh);
  if (!open) {
    request.error(EBADF);
    return;
  }
  std::vector<char> buffer(std::min(size, kMaxListing));
  std::size_t used = 0;
  open->snapshot->list(open->node, static_cast<std::uint64_t>(cookie),
                       [&](std::string_view name, const Node& node, std::uint64_t next) {
                         const fuse_entry_param entry = entry_of(node, *open->snapshot);
                         const std::size_t need = fuse_add_direntry_plus(
                             request.raw(), buffer.data() + used, buffer.size() - used,
                             std::string(name).c_str(), &entry, static_cast<off_t>(next));
                         if (need > buffer.size() - used) return false;
                         used += need;
                         return true;
                       });
  request.bytes(std::string_view(buffer.data(), used));
}

void FileSystem::releasedir(Request request, fuse_ino_t, fuse_file_info* file) {
  open_files_.remove_directory(file->fh);
  request.ok();
}

void FileSystem::getxattr(Request request, fuse_ino_t inode, const char* name, std::size_t size) {
  if (!is_own_xattr(name)) {
    request.error(ENODATA);
    return;
  }
  const std::shared_ptr<const TreeSnapshot> tree = tree_.snapshot();
  const std::optional<Node> node = tree->node(inode);
  if (!node) {
    request.error(kGone);
    return;
  }
  const auto answer = [this, tree, node = *node, attribute = std::string(name), size](Request asked) {
    const tl::expected<std::string, int> value =
        xattr_value(node, attribute, xattr_context(*tree, asked.uid()));
    if (!value)
      asked.error(value.error());
    else
      reply_xattr(std::move(asked), *value, size);
  };
  if (is_slow_xattr(*node, name))
    later(std::move(request), answer);
  else
    answer(std::move(request));
}

void FileSystem::later(Request request, std::function<void(Request)> answer) {
  // std::function must be copyable, a request must not.
  auto waiting = std::make_shared<Request>(std::move(request));
  status_.run([waiting, answer = std::move(answer)] { answer(std::move(*waiting)); });
}

void FileSystem::listxattr(Request request, fuse_ino_t inode, std::size_t size) {
  const std::shared_ptr<const TreeSnapshot> tree = tree_.snapshot();
  const std::optional<Node> node = tree->node(inode);
  if (!node) {
    request.error(kGone);
    return;
  }
  std::string list;
  for (const std::string& name : xattr_names(*node, xattr_context(*tree, request.uid())))
    list.append(name).push_back('\0');
  reply_xattr(std::move(request), list, size);
}

/// Daemons know more than we do: who is attached to them.
EntryHolders FileSystem::holders(const Entry& entry) {
  if (settings_.ask_daemons && entry.state() == State::ready)
    if (std::optional<EntryHolders> asked = settings_.ask_daemons(entry)) return std::move(*asked);
  return holders_of(entry, open_files_, mappings_);
}

XattrContext FileSystem::xattr_context(const TreeSnapshot& tree, uid_t asker) {
  return {[this](const Entry& entry) { return holders(entry).holders.size(); },
          [&tree](const Entry& entry) { return tree.partner(entry); }, settings_.mount,
          settings_.control_socket, asker == settings_.uid};
}

void FileSystem::reply_xattr(Request request, std::string_view value, std::size_t size) {
  if (size == 0)
    request.xattr_size(value.size());
  else if (size < value.size())
    request.error(ERANGE);
  else
    request.bytes(value);
}

}  // namespace wcache

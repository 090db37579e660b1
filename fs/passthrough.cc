#include "fs/passthrough.h"

#include <fuse_lowlevel.h>
#include <sys/ioctl.h>

#include <cerrno>
#include <utility>

namespace wcache {
namespace {

// <linux/fuse.h> of 6.9; Debian 12's is older.
struct BackingMap {
  std::int32_t fd;
  std::uint32_t flags;
  std::uint64_t padding;
};
constexpr unsigned kFuseDeviceMagic = 229;
constexpr unsigned long kBackingOpen = _IOW(kFuseDeviceMagic, 1, BackingMap);
constexpr unsigned long kBackingClose = _IOW(kFuseDeviceMagic, 2, std::uint32_t);

std::string refusal(int errnum) {
  switch (errnum) {
    case EPERM:
      return "the kernel refuses backing files to this process: it needs CAP_SYS_ADMIN in the initial user "
             "namespace";
    case ELOOP:
      return "the kernel refuses this memory as a backing file (stacked too deep)";
    default:
      return errno_error("registering a backing file", errnum).message;
  }
}

}  // namespace

Result<int> DeviceBackingRegistry::add(int backing_fd) {
  BackingMap map{backing_fd, 0, 0};
  const int id = ioctl(fuse_fd_, kBackingOpen, &map);
  if (id <= 0) return fail_errno("registering a backing file", id == 0 ? EIO : errno);
  return id;
}

void DeviceBackingRegistry::remove(int id) {
  auto number = static_cast<std::uint32_t>(id);
  ioctl(fuse_fd_, kBackingClose, &number);
}

void Passthrough::offer(bool agreed) {
  const std::lock_guard lock(mutex_);
  if (agreed)
    reason_.clear();
  else
    reason_ = WCACHE_HAVE_PASSTHROUGH ? "the kernel has no FUSE passthrough (Linux 6.9 or newer has)"
                                      : "built against a libfuse older than 3.17";
}

bool Passthrough::negotiate([[maybe_unused]] fuse_conn_info& conn) {
#if WCACHE_HAVE_PASSTHROUGH
  conn.max_backing_stack_depth = FUSE_BACKING_STACKED_UNDER;  // tmpfs and memfd are stacked on nothing
  return fuse_set_feature_flag(&conn, FUSE_CAP_PASSTHROUGH);
#else
  return false;
#endif
}

void Passthrough::try_out(BackingRegistry& registry, int backing_fd) {
  const std::lock_guard lock(mutex_);
  if (!reason_.empty()) return;
  const Result<int> id = registry.add(backing_fd);
  if (!id) {
    reason_ = refusal(id.error().errnum);
    return;
  }
  registry.remove(*id);
  registry_ = &registry;
}

void Passthrough::refuse(std::string reason) {
  const std::lock_guard lock(mutex_);
  registry_ = nullptr;
  reason_ = std::move(reason);
}

bool Passthrough::available() const {
  const std::lock_guard lock(mutex_);
  return registry_ != nullptr;
}

std::string Passthrough::reason() const {
  const std::lock_guard lock(mutex_);
  if (registry_ != nullptr) return {};
  return reason_.empty() ? "not tried yet" : reason_;
}

int Passthrough::acquire(std::uint64_t inode, int backing_fd) {
  const std::lock_guard lock(mutex_);
  if (registry_ == nullptr) return 0;
  Backing& backing = backings_[inode];
  if (backing.opens++ == 0) backing.id = registry_->add(backing_fd).value_or(0);
  return backing.id;
}

void Passthrough::release(std::uint64_t inode) {
  const std::lock_guard lock(mutex_);
  const auto found = backings_.find(inode);
  if (found == backings_.end() || --found->second.opens > 0) return;
  if (found->second.id > 0) registry_->remove(found->second.id);
  backings_.erase(found);
}

std::size_t Passthrough::registered() const {
  const std::lock_guard lock(mutex_);
  std::size_t count = 0;
  for (const auto& [inode, backing] : backings_) count += backing.id > 0 ? 1 : 0;
  return count;
}

void Passthrough::set_backing([[maybe_unused]] fuse_file_info& file, [[maybe_unused]] int id) {
#if WCACHE_HAVE_PASSTHROUGH
  file.backing_id = id;
#endif
}

}  // namespace wcache

#include "daemon/memory/tmpfs.h"

#include <fcntl.h>
#include <sys/mount.h>

#include <cerrno>
#include <utility>

namespace wcache {
namespace {

constexpr unsigned kAttributes = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC;

class Context {
 public:
  Context(const MemoryKernel& kernel, Fd fd) : kernel_(kernel), fd_(std::move(fd)) {}
  int get() const { return fd_.get(); }

  Status set(const char* key, const std::string& value) {
    return check(kernel_.fsconfig(fd_.get(), FSCONFIG_SET_STRING, key, value.c_str(), 0),
                 std::string("setting ") + key + "=" + value + " of a tmpfs");
  }

  Status set_flag(const char* key) {
    return check(kernel_.fsconfig(fd_.get(), FSCONFIG_SET_FLAG, key, nullptr, 0),
                 std::string("setting ") + key + " of a tmpfs");
  }

  /// A flag or value that this kernel may not know: EINVAL leaves it out.
  Status try_set(const char* key, const char* value) {
    const unsigned command = value != nullptr ? FSCONFIG_SET_STRING : FSCONFIG_SET_FLAG;
    const int rc = kernel_.fsconfig(fd_.get(), command, key, value, 0);
    if (rc != 0 && errno == EINVAL) return {};
    return check(rc, std::string("setting ") + key + " of a tmpfs");
  }

  Status run(unsigned command, const std::string& what) {
    return check(kernel_.fsconfig(fd_.get(), command, nullptr, nullptr, 0), what);
  }

 private:
  static Status check(int rc, const std::string& what) {
    if (rc != 0) return fail_errno(what, errno);
    return {};
  }

  const MemoryKernel& kernel_;
  Fd fd_;
};

Status configure(Context& context, const PrivateTmpfs::Limits& limits) {
  if (auto s = context.set("source", "wcache"); !s) return s;
  if (auto s = context.set("size", std::to_string(limits.nbytes)); !s) return s;
  // The root directory takes an inode of its own.
  if (auto s = context.set("nr_inodes", std::to_string(limits.files + 1)); !s) return s;
  if (auto s = context.set("mode", "0700"); !s) return s;
  if (limits.huge_pages)
    if (auto s = context.try_set("huge", "within_size"); !s) return s;
  if (auto s = context.try_set("noswap", nullptr); !s) return s;
  return context.run(FSCONFIG_CMD_CREATE, "creating a tmpfs");
}

}  // namespace

Result<PrivateTmpfs> PrivateTmpfs::create(const MemoryKernel& kernel, const Limits& limits) {
  const int fd = kernel.fsopen("tmpfs", FSOPEN_CLOEXEC);
  if (fd < 0) return fail_errno("opening a tmpfs context (fsopen)", errno);
  Context context(kernel, Fd::adopt(fd));
  if (auto s = configure(context, limits); !s) return fail(s.error());
  const int mount = kernel.fsmount(context.get(), FSMOUNT_CLOEXEC, kAttributes);
  if (mount < 0) return fail_errno("mounting a private tmpfs (fsmount)", errno);
  return PrivateTmpfs(kernel, Fd::adopt(mount));
}

Result<Fd> PrivateTmpfs::create_file(const std::string& name) {
  const int fd = kernel_->openat(mount_.get(), name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0400);
  if (fd < 0) return fail_errno("creating " + name + " in a private tmpfs", errno);
  return Fd::adopt(fd);
}

Status PrivateTmpfs::make_read_only() && {
  const Fd mount = std::move(mount_);
  const int fd = kernel_->fspick(mount.get(), "", FSPICK_CLOEXEC | FSPICK_EMPTY_PATH);
  if (fd < 0) return fail_errno("picking the private tmpfs to make it read-only (fspick)", errno);
  Context context(*kernel_, Fd::adopt(fd));
  if (auto s = context.set_flag("ro"); !s) return s;
  auto done = context.run(FSCONFIG_CMD_RECONFIGURE, "making the entry's memory read-only");
  if (!done && done.error().errnum == EBUSY) {
    done.error().reason = Reason::internal;
    done.error().hint =
        "a writable descriptor or mapping of it is still open somewhere; nothing was published";
  }
  return done;
}

}  // namespace wcache

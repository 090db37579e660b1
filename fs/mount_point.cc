#include "fs/mount_point.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <optional>

#include "core/mount_table.h"
#include "fs/fusermount.h"

#ifndef MOVE_MOUNT_BENEATH
#define MOVE_MOUNT_BENEATH 0x00000200  // Linux 6.5
#endif

namespace wcache {
namespace {

constexpr int kMaxDeadMounts = 16;  // on one path: each restart on a stale mount could have left one

bool is_ours(const MountEntry& entry) {
  return entry.type == kMountType && entry.source == kMountSource;
}

std::string parent_of(std::string path) {
  path.erase(path.find_last_not_of('/') + 1);
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::string base_of(std::string path) {
  path.erase(path.find_last_not_of('/') + 1);
  return path.substr(path.rfind('/') + 1);
}

std::optional<std::string> real_path(const std::string& path) {
  const std::unique_ptr<char, decltype(&std::free)> resolved(realpath(path.c_str(), nullptr), &std::free);
  if (!resolved) return std::nullopt;
  return std::string(resolved.get());
}

Status check_empty(const std::string& path) {
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(opendir(path.c_str()), closedir);
  if (!directory) return fail_errno("opening the mount point " + path, errno);
  while (const dirent* row = readdir(directory.get())) {
    const std::string_view name = row->d_name;
    if (name != "." && name != "..")
      return fail(Reason::invalid, "the mount point " + path + " is not empty: it holds " + std::string(name),
                  "choose an empty directory: what is in it would be hidden");
  }
  return {};
}

std::string error_of_context(int context, std::string what) {
  // The kernel's own words, one message a read: "e fuse: ...".
  char text[256];
  for (ssize_t n = read(context, text, sizeof text); n > 0; n = read(context, text, sizeof text)) {
    std::string_view line(text, static_cast<std::size_t>(n));
    while (!line.empty() && line.back() == '\n') line.remove_suffix(1);
    what += "; " + std::string(line.size() > 2 ? line.substr(2) : line);
  }
  return what;
}

/// A detached FUSE mount served through `device`.
Result<Fd> make_mount(int device, bool allow_other) {
  const Fd context = Fd::adopt(fsopen("fuse", FSOPEN_CLOEXEC));
  if (!context) return fail_errno("fsopen of fuse", errno);
  const auto set = [&](const char* key, const std::string& value) {
    return fsconfig(context.get(), FSCONFIG_SET_STRING, key, value.c_str(), 0) == 0;
  };
  const auto flag = [&](const char* key) {
    return fsconfig(context.get(), FSCONFIG_SET_FLAG, key, nullptr, 0) == 0;
  };
  const bool configured = set("source", std::string(kMountSource)) && set("subtype", "wcachefs") &&
                          set("fd", std::to_string(device)) && set("rootmode", "40000") &&
                          set("user_id", std::to_string(geteuid())) &&
                          set("group_id", std::to_string(getegid())) && flag("default_permissions") &&
                          flag("ro") && (!allow_other || flag("allow_other")) &&
                          fsconfig(context.get(), FSCONFIG_CMD_CREATE, nullptr, nullptr, 0) == 0;
  if (!configured) {
    const int errnum = errno;
    return fail_errno(error_of_context(context.get(), "configuring the FUSE mount"), errnum);
  }
  Fd mount = Fd::adopt(
      fsmount(context.get(), FSMOUNT_CLOEXEC, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV));
  if (!mount) return fail_errno("fsmount", errno);
  return mount;
}

Status attach_mount(int mount, const std::string& path, unsigned flags) {
  if (move_mount(mount, "", AT_FDCWD, path.c_str(), MOVE_MOUNT_F_EMPTY_PATH | flags) != 0)
    return fail_errno("mounting at " + path, errno);
  return {};
}

/// What this process sees mounted at `path`, topmost.
Result<std::optional<MountEntry>> topmost(const std::string& path) {
  Result<std::vector<MountEntry>> table = read_mount_table();
  if (!table) return fail(std::move(table.error()));
  const MountEntry* entry = mount_at(*table, path);
  if (entry == nullptr) return std::nullopt;
  return *entry;
}

Status detach(const std::string& path) {
  if (umount2(path.c_str(), MNT_DETACH | UMOUNT_NOFOLLOW) == 0) return {};
  if (errno != EPERM) return fail_errno("detaching the dead mount at " + path, errno);
  return fusermount_unmount(path, true);
}

Result<std::size_t> count_at(const std::string& path) {
  Result<std::vector<MountEntry>> table = read_mount_table();
  if (!table) return fail(std::move(table.error()));
  return static_cast<std::size_t>(std::count_if(table->begin(), table->end(),
                                                [&](const MountEntry& entry) { return entry.path == path; }));
}

/// Detaches dead mounts of ours at `path` until `keep` mounts are left there, or what is on top is not dead.
Status detach_dead(const std::string& path, std::size_t keep) {
  for (int i = 0; i < kMaxDeadMounts; ++i) {
    Result<std::size_t> count = count_at(path);
    if (!count) return fail(std::move(count.error()));
    if (*count <= keep) return {};
    Result<MountPointState> state = look_at_mount_point(path);
    if (!state) return fail(std::move(state.error()));
    if (*state != MountPointState::dead) return {};
    if (Status detached = detach(path); !detached) return detached;
  }
  return fail(Reason::internal, "dead mounts at " + path + " do not go away");
}

/// Puts a detached mount at `path`. A dead one there is replaced from beneath, so that the path is never
/// empty.
Status attach_over(int mount, const std::string& path, MountPointState state, spdlog::logger& log) {
  if (state == MountPointState::dead) {
    if (Status trimmed = detach_dead(path, 1); !trimmed) return trimmed;
    if (attach_mount(mount, path, MOVE_MOUNT_BENEATH)) {
      log.info("replacing the dead mount at {} from beneath", path);
      return detach(path);
    }
    log.info("detaching the dead mount at {}", path);
    if (Status detached = detach_dead(path, 0); !detached) return detached;
    Result<MountPointState> now = look_at_mount_point(path);
    if (!now) return fail(std::move(now.error()));
    if (*now != MountPointState::free) return fail(Reason::invalid, "something else is mounted at " + path);
  }
  return attach_mount(mount, path, 0);
}

/// Mounts with this process's own rights. denied (EPERM or EACCES): it has none.
Result<Fd> mount_by_ourselves(const std::string& path, bool allow_other, MountPointState state,
                              spdlog::logger& log) {
  Fd device = Fd::adopt(open("/dev/fuse", O_RDWR | O_CLOEXEC));
  if (!device) {
    Error error = errno_error("opening /dev/fuse", errno);
    if (error.errnum == ENOENT || error.errnum == ENODEV) {
      error.reason = Reason::unsupported;
      error.hint = "load the kernel module fuse, or give the container /dev/fuse";
    }
    return fail(std::move(error));
  }
  Result<Fd> made = make_mount(device.get(), allow_other);
  if (!made) return fail(std::move(made.error()));
  if (Status attached = attach_over(made->get(), path, state, log); !attached)
    return fail(std::move(attached.error()));
  return device;
}

Result<Fd> mount_by_helper(const std::string& path, bool allow_other, MountPointState state) {
  if (state == MountPointState::dead)
    if (Status detached = detach_dead(path, 0); !detached) return fail(std::move(detached.error()));
  return fusermount_mount(path, "ro,nosuid,nodev,default_permissions,fsname=" + std::string(kMountSource) +
                                    ",subtype=wcachefs" + (allow_other ? ",allow_other" : ""));
}

}  // namespace

Result<std::string> resolve_mount_point(const std::string& directory) {
  if (directory.empty()) return fail(Reason::invalid, "the mount point is an empty path");
  if (std::optional<std::string> path = real_path(directory)) {
    struct stat st {};
    if (stat(path->c_str(), &st) == 0 && !S_ISDIR(st.st_mode))
      return fail(Reason::invalid, "the mount point " + *path + " is no directory");
    return *path;
  }
  const int errnum = errno;
  if (errnum != ENOTCONN && errnum != EACCES) return fail_errno("the mount point " + directory, errnum);
  const std::optional<std::string> parent = real_path(parent_of(directory));
  if (!parent) return fail_errno("the mount point " + directory, errno);
  return (*parent == "/" ? "" : *parent) + "/" + base_of(directory);
}

Result<MountPointState> look_at_mount_point(const std::string& path) {
  Result<std::optional<MountEntry>> entry = topmost(path);
  if (!entry) return fail(std::move(entry.error()));
  if (!*entry) {
    if (Status empty = check_empty(path); !empty) return fail(std::move(empty.error()));
    return MountPointState::free;
  }
  if (!is_ours(**entry)) return MountPointState::foreign;
  const Fd directory = Fd::adopt(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  return !directory && errno == ENOTCONN ? MountPointState::dead : MountPointState::ours;
}

Result<MountPoint> MountPoint::mount(const std::string& path, const Options& options, spdlog::logger& log) {
  Result<MountPointState> state = look_at_mount_point(path);
  if (!state) return fail(std::move(state.error()));
  if (*state == MountPointState::foreign)
    return fail(Reason::invalid, "something else is mounted at " + path,
                "choose another directory, or unmount it");
  if (*state == MountPointState::ours)
    return fail(Reason::busy, "another wcachefs serves " + path,
                "one mount is enough for every model of a run directory");

  Result<Fd> device = mount_by_ourselves(path, options.allow_other, *state, log);
  const bool by_helper = !device && device.error().reason == Reason::denied;
  if (by_helper) device = mount_by_helper(path, options.allow_other, *state);
  if (!device) return fail(std::move(device.error()));
  Result<std::optional<MountEntry>> entry = topmost(path);
  if (!entry || !*entry || !is_ours(**entry))
    return fail(Reason::internal, "the mount at " + path + " is not in the mount table");
  return MountPoint(path, std::move(*device), (*entry)->device, by_helper);
}

Status MountPoint::set_read_ahead(unsigned kib) const {
  const std::string setting = "/sys/class/bdi/" + number_ + "/read_ahead_kb";
  Result<Fd> file = open_file(setting.c_str(), O_WRONLY);
  if (!file) return fail(std::move(file.error()));
  const std::string value = std::to_string(kib);
  if (write(file->get(), value.data(), value.size()) < 0) return fail_errno("writing " + setting, errno);
  return {};
}

Result<MountPoint::Unmounted> MountPoint::unmount() {
  Result<std::optional<MountEntry>> entry = topmost(path_);
  if (!entry) return fail(std::move(entry.error()));
  if (!*entry || (*entry)->device != number_) return Unmounted::gone_already;
  const auto take_down = [&](bool lazily) -> Status {
    if (by_helper_) return fusermount_unmount(path_, lazily);
    if (umount2(path_.c_str(), UMOUNT_NOFOLLOW | (lazily ? MNT_DETACH : 0)) == 0) return {};
    return fail_errno("unmounting " + path_, errno);
  };
  if (take_down(false)) return Unmounted::clean;
  if (Status lazily = take_down(true); !lazily) return fail(std::move(lazily.error()));
  return Unmounted::lazily;
}

}  // namespace wcache

#include "client/fuse_probe.h"

#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <sstream>

#include "core/fd.h"

namespace wcache {
namespace {

// From Linux 6.9's <linux/fuse.h>; Debian 12's is older.
constexpr std::uint64_t kInitExt = std::uint64_t{1} << 30;
constexpr std::uint64_t kPassthrough = std::uint64_t{1} << 37;
constexpr std::size_t kStackDepthOffset = 36;  // of max_stack_depth in struct fuse_init_out
constexpr std::uint32_t kInitMinor = 40;
constexpr std::size_t kRequestBytes = 8192;  // the least a reader of /dev/fuse must offer
struct BackingMap {
  std::int32_t fd;
  std::uint32_t flags;
  std::uint64_t padding;
};
constexpr unsigned long kBackingOpen = _IOW(229, 1, BackingMap);
constexpr unsigned long kBackingClose = _IOW(229, 2, std::uint32_t);

Result<Fd> make_mount(int device) {
  const Fd context = Fd::adopt(fsopen("fuse", FSOPEN_CLOEXEC));
  if (!context) return fail_errno("fsopen of fuse", errno);
  const auto set = [&](const char* key, const std::string& value) {
    return fsconfig(context.get(), FSCONFIG_SET_STRING, key, value.c_str(), 0) == 0;
  };
  const bool made = set("fd", std::to_string(device)) && set("rootmode", "40000") &&
                    set("user_id", std::to_string(geteuid())) && set("group_id", std::to_string(getegid())) &&
                    fsconfig(context.get(), FSCONFIG_CMD_CREATE, nullptr, nullptr, 0) == 0;
  if (!made) return fail_errno("making a FUSE mount", errno);
  Fd mount = Fd::adopt(fsmount(context.get(), FSMOUNT_CLOEXEC, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID));
  if (!mount) return fail_errno("making a FUSE mount", errno);
  return mount;
}

/// Answers the kernel's first request, asking for passthrough where it is offered.
Status answer_init(int device) {
  pollfd item{device, POLLIN, 0};
  if (poll(&item, 1, 2000) != 1) return fail(Reason::timeout, "the kernel sent no FUSE request");
  alignas(8) std::array<char, kRequestBytes> request{};
  if (read(device, request.data(), request.size()) < static_cast<ssize_t>(sizeof(fuse_in_header) + 16))
    return fail_errno("reading /dev/fuse", errno);
  fuse_in_header header{};
  fuse_init_in offered{};
  std::memcpy(&header, request.data(), sizeof header);
  std::memcpy(&offered, request.data() + sizeof header, sizeof offered);
  const std::uint64_t flags = offered.flags | (std::uint64_t{offered.flags2} << 32);
  if (header.opcode != FUSE_INIT || offered.minor < kInitMinor || (flags & kPassthrough) == 0)
    return fail(Reason::unsupported, "this kernel does not offer FUSE passthrough");

  fuse_init_out reply{};
  reply.major = FUSE_KERNEL_VERSION;
  reply.minor = kInitMinor;
  reply.flags = static_cast<std::uint32_t>(kInitExt);
  reply.flags2 = static_cast<std::uint32_t>(kPassthrough >> 32);
  reply.max_write = 4096;
  const std::uint32_t depth = 1;
  static_assert(sizeof reply >= kStackDepthOffset + sizeof depth);
  std::memcpy(reinterpret_cast<char*>(&reply) + kStackDepthOffset, &depth, sizeof depth);
  fuse_out_header out{};
  out.len = sizeof out + sizeof reply;
  out.unique = header.unique;
  std::array<char, sizeof out + sizeof reply> bytes{};
  std::memcpy(bytes.data(), &out, sizeof out);
  std::memcpy(bytes.data() + sizeof out, &reply, sizeof reply);
  if (write(device, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size()))
    return fail_errno("answering the kernel", errno);
  return {};
}

Status register_backing(int device) {
  const Fd memory = Fd::adopt(memfd_create("wcache-doctor", MFD_CLOEXEC));
  if (!memory) return fail_errno("memfd_create", errno);
  const BackingMap map{memory.get(), 0, 0};
  const int id = ioctl(device, kBackingOpen, &map);
  if (id <= 0) return fail_errno("registering memory for passthrough", errno);
  const auto number = static_cast<std::uint32_t>(id);
  ioctl(device, kBackingClose, &number);
  return {};
}

std::string setuid_helper() {
  constexpr std::array<const char*, 4> kPlaces = {"/usr/bin/fusermount3", "/bin/fusermount3",
                                                  "/usr/local/bin/fusermount3", "/usr/sbin/fusermount3"};
  for (const char* place : kPlaces) {
    struct stat st {};
    if (stat(place, &st) == 0 && st.st_uid == 0 && (st.st_mode & S_ISUID) != 0 && access(place, X_OK) == 0)
      return place;
  }
  return {};
}

}  // namespace

FuseProbe probe_fuse() {
  FuseProbe probe;
  probe.helper = setuid_helper();
  probe.passthrough = fail(Reason::denied, "no mount could be made to try it on");
  Result<Fd> device = open_file("/dev/fuse", O_RDWR);
  if (!device) {
    probe.device = fail(device.error());
    probe.mount = probe.device;
    return probe;
  }
  const Result<Fd> mount = make_mount(device->get());
  if (!mount) {
    probe.mount = fail(mount.error());
    return probe;
  }
  probe.passthrough = answer_init(device->get());
  if (probe.passthrough) probe.passthrough = register_backing(device->get());
  device->reset();  // before the mount: nobody answers it any more
  return probe;
}

}  // namespace wcache

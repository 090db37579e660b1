#pragma once

#include <fuse_lowlevel.h>
#include <linux/fuse.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "core/fd.h"
#include "fs/file_system.h"

namespace wcache::test {

// <linux/fuse.h> of 6.9; Debian 12's is older.
inline constexpr std::uint32_t kInitFlags2DirectIoAllowMmap = 1u << 4;
inline constexpr std::uint32_t kInitFlags2Passthrough = 1u << 5;
inline constexpr std::uint32_t kOpenPassthrough = 1u << 7;

/// The kernel's side of a FUSE connection, over a socket pair: no mount, no rights, no /dev/fuse. Requests
/// are sent as the kernel sends them and the raw replies looked at. One thread at a time.
class FakeKernel {
 public:
  /// Starts a session that serves `fs`, and says INIT. `flags2`: the newer capabilities offered.
  explicit FakeKernel(FileSystem& fs,
                      std::uint32_t flags2 = kInitFlags2DirectIoAllowMmap | kInitFlags2Passthrough);
  ~FakeKernel();

  struct Reply {
    int errnum = 0;
    std::string bytes;
    template <class T>
    T as() const {
      T value{};
      std::memcpy(&value, bytes.data(), std::min(sizeof value, bytes.size()));
      return value;
    }
  };

  /// Sends one request; `send` alone for those that have no reply, or a late one.
  Reply ask(std::uint32_t opcode, std::uint64_t inode, std::string_view body = {});
  std::uint64_t send(std::uint32_t opcode, std::uint64_t inode, std::string_view body = {});
  /// The next reply, whatever request it is for; nullopt when none comes within `wait_ms`.
  struct Late {
    std::uint64_t unique = 0;
    Reply reply;
  };
  std::optional<Late> receive(int wait_ms);

  template <class T>
  static std::string_view bytes_of(const T& value) {
    return {reinterpret_cast<const char*>(&value), sizeof value};
  }

  // What most tests ask for.
  Reply lookup(std::uint64_t parent, const std::string& name);
  std::uint64_t walk(const std::string& path);  ///< inode of a path from the root; 0 when it is not there
  Reply getattr(std::uint64_t inode, std::optional<std::uint64_t> handle = std::nullopt);
  Reply open(std::uint64_t inode, std::uint32_t flags = 0, bool directory = false);
  Reply read(std::uint64_t inode, std::uint64_t handle, std::uint64_t offset, std::uint32_t size,
             std::uint32_t opcode = FUSE_READ);
  Reply release(std::uint64_t inode, std::uint64_t handle, bool directory = false);
  Reply getxattr(std::uint64_t inode, const std::string& name, std::uint32_t size);
  Reply listxattr(std::uint64_t inode, std::uint32_t size);
  /// Names of a whole directory, in reads of `size` bytes.
  std::vector<std::string> list(std::uint64_t inode, std::uint32_t size, bool plus);

  const fuse_init_out& init() const { return init_; }

  /// Requests come from this user from now on; before, from the test's own.
  void ask_as(uid_t uid) { uid_ = uid; }

 private:
  Fd kernel_;
  fuse_session* session_ = nullptr;
  fuse_init_out init_{};
  std::uint64_t unique_ = 2;
  uid_t uid_ = getuid();
  std::thread thread_;
};

}  // namespace wcache::test

#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/entry_plan.h"
#include "core/result.h"

namespace wcache {

/// The directory where the processes of one node find each other: mode 0700, owned by the user, no symbolic
/// link. An object of this type has been checked; it is a value and names the directory by path.
class RunDir {
 public:
  /// Looks up one variable of the environment.
  using Environment = std::function<std::optional<std::string>(const char* name)>;
  static std::optional<std::string> process_environment(const char* name);

  /// Where it is when no option says so: WCACHE_RUN_DIR, else /run/wcache for root, else
  /// $XDG_RUNTIME_DIR/wcache. XDG_RUNTIME_DIR unset: invalid, with the hint.
  static Result<std::string> default_path(uid_t uid, const Environment& environment);

  /// Checks a directory that is there. Absent: not_found. Not ours, a link, or open to others: denied.
  static Result<RunDir> open(std::string_view path);

  /// The same, but makes the directory (its last part only) when it is absent.
  static Result<RunDir> create(std::string_view path);

  const std::string& path() const { return path_; }  ///< absolute

  /// Refuses a directory whose longest socket name of any role on this device would pass the 107 bytes of a
  /// Unix socket's path: invalid, naming limit and length. Called before anything is loaded.
  Status check_socket_length(std::string_view device_uuid) const;

  /// The socket of one rank: "wcache_<first 16 digits>_<device uuid>[_draft0].sock". Its lock is
  /// "<path>.lock".
  std::string rank_socket(Role role, const Fingerprint& fingerprint, std::string_view device_uuid) const;
  std::string launcher_socket(pid_t pid) const;  ///< "launcher_<pid>.sock"
  std::string mount_socket() const;              ///< "wcachefs.sock"
  std::string file(std::string_view name) const { return path_ + "/" + std::string(name); }

  enum class SocketKind { rank, launcher, mount };
  struct Socket {
    SocketKind kind = SocketKind::rank;
    std::string path;
    // Of a rank's socket only, from its name:
    Role role = Role::target;
    std::string fingerprint_prefix;  ///< 16 digits
    std::string device_uuid;
    bool operator==(const Socket&) const = default;
  };

  /// What a name in this directory stands for; nullopt for everything that is no socket of ours.
  std::optional<Socket> parse(std::string_view file_name) const;

  /// Every socket that is there, sorted by path. Whether somebody answers is another matter.
  Result<std::vector<Socket>> sockets() const;

 private:
  explicit RunDir(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

/// The name alone of RunDir::rank_socket: for who says where a socket would be.
std::string rank_socket_name(Role role, const Fingerprint& fingerprint, std::string_view device_uuid);

/// The bytes of a Unix socket's path, without the final NUL.
inline constexpr std::size_t kMaxSocketPath = 107;

}  // namespace wcache

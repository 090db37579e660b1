#include "ipc/run_dir.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>

namespace wcache {
namespace {

constexpr std::string_view kSuffix = ".sock";
constexpr std::string_view kRankPrefix = "wcache_";
constexpr std::string_view kLauncherPrefix = "launcher_";
constexpr std::string_view kMountName = "wcachefs.sock";
constexpr std::size_t kPrefixDigits = 16;
constexpr std::array kRoles{Role::target, Role::draft0};

std::string role_part(Role role) {
  return role == Role::target ? std::string() : "_" + std::string(to_string(role));
}

std::string rank_name(Role role, std::string_view digits, std::string_view device_uuid) {
  return std::string(kRankPrefix) + std::string(digits) + "_" + std::string(device_uuid) + role_part(role) +
         std::string(kSuffix);
}

bool all_of(std::string_view text, std::string_view allowed) {
  return !text.empty() && text.find_first_not_of(allowed) == std::string_view::npos;
}

Result<std::string> absolute(std::string_view path) {
  if (path.empty()) return fail(Reason::invalid, "the run directory's name is empty", {}, "--run-dir");
  std::error_code error;
  std::string text =
      std::filesystem::absolute(std::filesystem::path(path), error).lexically_normal().string();
  if (error) return fail(errno_error("finding the run directory " + std::string(path), error.value()));
  while (text.size() > 1 && text.back() == '/') text.pop_back();
  return text;
}

Status check(const std::string& path) {
  struct stat st {};
  if (lstat(path.c_str(), &st) != 0) return fail_errno("run directory " + path, errno);
  if (S_ISLNK(st.st_mode)) return fail(Reason::denied, "run directory " + path + " is a symbolic link");
  if (!S_ISDIR(st.st_mode)) return fail(Reason::denied, "run directory " + path + " is not a directory");
  if (st.st_uid != geteuid())
    return fail(Reason::denied, "run directory " + path + " belongs to user " + std::to_string(st.st_uid) +
                                    ", not to user " + std::to_string(geteuid()));
  if ((st.st_mode & 077) != 0)
    return fail(Reason::denied, "run directory " + path + " is open to other users", "chmod 0700 " + path);
  return {};
}

}  // namespace

std::optional<std::string> RunDir::process_environment(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

Result<std::string> RunDir::default_path(uid_t uid, const Environment& environment) {
  if (std::optional<std::string> given = environment("WCACHE_RUN_DIR")) return *given;
  if (uid == 0) return "/run/wcache";
  if (std::optional<std::string> runtime = environment("XDG_RUNTIME_DIR")) return *runtime + "/wcache";
  return fail(Reason::invalid, "no run directory: XDG_RUNTIME_DIR is not set",
              "name one with --run-dir or WCACHE_RUN_DIR", "--run-dir");
}

Result<RunDir> RunDir::open(std::string_view path) {
  Result<std::string> name = absolute(path);
  if (!name) return fail(name.error());
  if (Status checked = check(*name); !checked) return fail(checked.error());
  return RunDir(std::move(*name));
}

Result<RunDir> RunDir::create(std::string_view path) {
  const Result<std::string> name = absolute(path);
  if (!name) return fail(name.error());
  if (mkdir(name->c_str(), 0700) != 0 && errno != EEXIST)
    return fail_errno("making the run directory " + *name, errno);
  return open(*name);
}

Status RunDir::check_socket_length(std::string_view device_uuid) const {
  std::size_t longest = 0;
  for (const Role role : kRoles)
    longest = std::max(
        longest, path_.size() + 1 + rank_name(role, std::string(kPrefixDigits, '0'), device_uuid).size());
  if (longest <= kMaxSocketPath) return {};
  return fail(Reason::invalid,
              "run directory " + path_ + " is too long: the path of a socket in it has " +
                  std::to_string(longest) + " bytes, the limit is " + std::to_string(kMaxSocketPath),
              "name a shorter one with --run-dir", "--run-dir");
}

std::string RunDir::rank_socket(Role role, const Fingerprint& fingerprint,
                                std::string_view device_uuid) const {
  return file(rank_socket_name(role, fingerprint, device_uuid));
}

std::string rank_socket_name(Role role, const Fingerprint& fingerprint, std::string_view device_uuid) {
  return rank_name(role, to_hex(fingerprint).substr(0, kPrefixDigits), device_uuid);
}

std::string RunDir::launcher_socket(pid_t pid) const {
  return file(std::string(kLauncherPrefix) + std::to_string(pid) + std::string(kSuffix));
}

std::string RunDir::mount_socket() const {
  return file(kMountName);
}

std::optional<RunDir::Socket> RunDir::parse(std::string_view file_name) const {
  Socket socket;
  socket.path = file(file_name);
  if (file_name == kMountName) {
    socket.kind = SocketKind::mount;
    return socket;
  }
  if (!file_name.ends_with(kSuffix)) return std::nullopt;
  std::string_view stem = file_name.substr(0, file_name.size() - kSuffix.size());
  if (stem.starts_with(kLauncherPrefix)) {
    socket.kind = SocketKind::launcher;
    if (!all_of(stem.substr(kLauncherPrefix.size()), "0123456789")) return std::nullopt;
    return socket;
  }
  if (!stem.starts_with(kRankPrefix)) return std::nullopt;
  stem.remove_prefix(kRankPrefix.size());
  for (const Role role : kRoles) {
    const std::string part = role_part(role);
    if (part.empty() || !stem.ends_with(part)) continue;
    socket.role = role;
    stem.remove_suffix(part.size());
    break;
  }
  if (stem.size() < kPrefixDigits + 2 || stem[kPrefixDigits] != '_') return std::nullopt;
  socket.fingerprint_prefix = stem.substr(0, kPrefixDigits);
  socket.device_uuid = stem.substr(kPrefixDigits + 1);
  if (!all_of(socket.fingerprint_prefix, "0123456789abcdef")) return std::nullopt;
  return socket;
}

Result<std::vector<RunDir::Socket>> RunDir::sockets() const {
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(opendir(path_.c_str()), closedir);
  if (!directory) return fail_errno("listing " + path_, errno);
  std::vector<Socket> found;
  while (const dirent* item = readdir(directory.get()))
    if (std::optional<Socket> socket = parse(item->d_name)) found.push_back(std::move(*socket));
  std::sort(found.begin(), found.end(), [](const Socket& a, const Socket& b) { return a.path < b.path; });
  return found;
}

}  // namespace wcache

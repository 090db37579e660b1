#include "daemon/budget.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
#include <string_view>
#include <utility>

#include "core/format.h"
#include "core/mount_table.h"

namespace wcache {
namespace {

namespace fs = std::filesystem;

/// The files of one kind of memory cgroup.
struct CgroupFiles {
  const char* usage;
  std::vector<const char*> limits;
  std::vector<std::string_view> reclaimable;  ///< keys of memory.stat
};
const CgroupFiles kVersion1{
    "memory.usage_in_bytes", {"memory.limit_in_bytes"}, {"total_inactive_file", "total_active_file"}};
const CgroupFiles kVersion2{
    "memory.current", {"memory.max", "memory.high"}, {"inactive_file", "active_file", "slab_reclaimable"}};

/// Version 1 writes "no limit" as the largest multiple of a page.
constexpr std::uint64_t kNoLimit = std::uint64_t{1} << 62;

std::optional<std::string> read_text(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

std::optional<std::uint64_t> parse(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end == text.data()) return std::nullopt;
  return value;
}

std::optional<std::uint64_t> read_number(const fs::path& path) {
  const auto text = read_text(path);
  return text ? parse(*text) : std::nullopt;  // "max" is no number
}

/// The number behind `key` at the start of a line.
std::optional<std::uint64_t> find_number(std::string_view text, std::string_view key) {
  for (std::size_t at = 0; at < text.size();) {
    const std::string_view line = text.substr(at, text.find('\n', at) - at);
    if (line.size() > key.size() && line.starts_with(key) &&
        (line[key.size()] == ' ' || line[key.size()] == ':'))
      return parse(line.substr(key.size() + 1));
    at += line.size() + 1;
  }
  return std::nullopt;
}

bool has_word(std::string_view list, std::string_view word) {
  for (std::size_t at = 0; at <= list.size();) {
    const std::size_t end = std::min(list.find(',', at), list.size());
    if (list.substr(at, end - at) == word) return true;
    at = end + 1;
  }
  return false;
}

/// The path of this process's memory cgroup in the hierarchy of version 1 or 2, from /proc/self/cgroup, whose
/// lines are "id:controllers:path" (version 2: "0::path").
std::optional<std::string> cgroup_path(std::string_view text, bool version2) {
  for (std::size_t at = 0; at < text.size();) {
    const std::string_view line = text.substr(at, text.find('\n', at) - at);
    at += line.size() + 1;
    const std::size_t first = line.find(':');
    const std::size_t second = first == line.npos ? line.npos : line.find(':', first + 1);
    if (second == line.npos) continue;
    const std::string_view controllers = line.substr(first + 1, second - first - 1);
    if (version2 ? line.starts_with("0::") : has_word(controllers, "memory"))
      return std::string(line.substr(second + 1));
  }
  return std::nullopt;
}

/// What `path` is called below a mount that shows only `mount_root` of the hierarchy: a container sees its
/// own cgroup, but /proc may name it as the host does. What lies outside is seen at the mount's top at best.
std::string below(std::string_view path, std::string_view mount_root) {
  if (mount_root == "/") mount_root = "";
  const bool inside =
      path.starts_with(mount_root) && (path.size() == mount_root.size() || path[mount_root.size()] == '/');
  if (!inside || path.find("..") != path.npos) return "";
  return std::string(path.substr(mount_root.size()));
}

void add_cgroup(std::vector<MemoryLimit>& out, const fs::path& directory, const fs::path& shown,
                const CgroupFiles& files) {
  const auto usage = read_number(directory / files.usage);
  if (!usage) return;
  std::uint64_t reclaimable = 0;
  if (const auto stat = read_text(directory / "memory.stat"))
    for (std::string_view key : files.reclaimable) reclaimable += find_number(*stat, key).value_or(0);
  const std::uint64_t used = *usage - std::min(*usage, reclaimable);
  for (const char* file : files.limits) {
    const auto limit = read_number(directory / file);
    if (!limit || *limit >= kNoLimit) continue;
    out.push_back({.name = "the cgroup limit " + (shown / file).string(),
                   .total = *limit,
                   .available = *limit - std::min(*limit, used),
                   .hint = "raise it (a container's memory limit, systemd's MemoryMax=), or evict entries"});
  }
}

void add_cgroups(std::vector<MemoryLimit>& out, const fs::path& root, bool version2) {
  const auto own = read_text(root / "proc/self/cgroup");
  const auto mounts = read_text(root / "proc/self/mountinfo");
  if (!own || !mounts) return;
  const auto path = cgroup_path(*own, version2);
  if (!path) return;
  for (const MountEntry& mount : parse_mount_table(*mounts)) {
    const bool wanted = version2 ? mount.type == "cgroup2"
                                 : mount.type == "cgroup" && has_word(mount.super_options, "memory");
    if (!wanted) continue;
    const fs::path top = fs::path(mount.path).relative_path();
    std::string group = below(*path, mount.root);
    while (true) {
      const fs::path relative = fs::path(group).relative_path();
      const fs::path shown = relative.empty() ? top : top / relative;
      add_cgroup(out, root / shown, "/" / shown, version2 ? kVersion2 : kVersion1);
      if (relative.empty()) break;
      group = group.substr(0, group.rfind('/'));
    }
    return;
  }
}

std::string in_words(std::uint64_t nbytes) {
  return human_size(nbytes) + " (" + std::to_string(nbytes) + " bytes)";
}

}  // namespace

std::vector<MemoryLimit> machine_memory_limits(const fs::path& root) {
  std::vector<MemoryLimit> out;
  if (const auto meminfo = read_text(root / "proc/meminfo")) {
    const auto total = find_number(*meminfo, "MemTotal");
    const auto available = find_number(*meminfo, "MemAvailable");
    if (total && available)
      out.push_back({.name = "this machine's free memory (MemAvailable)",
                     .total = *total * 1024,
                     .available = *available * 1024,
                     .hint = "free memory, evict entries, or use a machine with more"});
  }
  add_cgroups(out, root, true);
  add_cgroups(out, root, false);
  return out;
}

Status check_budget(std::uint64_t needed, std::optional<std::uint64_t> memory_limit,
                    const std::vector<MemoryLimit>& machine) {
  std::vector<MemoryLimit> limits = machine;
  if (memory_limit)
    limits.push_back({.name = "--memory-limit",
                      .total = *memory_limit,
                      .available = *memory_limit,
                      .hint = "raise --memory-limit, or evict entries",
                      .key = "memory-limit"});
  const auto tightest =
      std::min_element(limits.begin(), limits.end(),
                       [](const MemoryLimit& a, const MemoryLimit& b) { return a.available < b.available; });
  if (tightest == limits.end() || needed <= tightest->available) return {};
  return fail(Reason::over_budget,
              in_words(needed) + " of memory are needed, and " + tightest->name + " leaves " +
                  in_words(tightest->available) + " of " + in_words(tightest->total),
              tightest->hint, tightest->key);
}

}  // namespace wcache

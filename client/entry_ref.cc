#include "client/entry_ref.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "core/format.h"

namespace wcache {
namespace {

constexpr std::size_t kShortestPrefix = 8;
constexpr std::size_t kFingerprintDigits = 32;
constexpr std::array<std::string_view, 2> kRoles = {"target", "draft0"};

bool is_prefix(std::string_view text) {
  return text.size() >= kShortestPrefix && text.size() <= kFingerprintDigits &&
         text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

bool is_fingerprint(std::string_view text) {
  return text.size() == kFingerprintDigits && is_prefix(text);
}

/// ROLE/FINGERPRINT or ROLE/by-name/NAME out of a path, whatever lies before and behind it.
struct PathRef {
  std::string role;
  std::string word;
};

/// `mount`: where the tree is mounted; nullptr: not known.
std::optional<PathRef> parse_path(std::string_view text, const std::string* mount) {
  std::error_code error;
  std::filesystem::path path =
      std::filesystem::absolute(std::filesystem::path(text), error).lexically_normal();
  if (error) return std::nullopt;
  if (mount != nullptr) path = path.lexically_relative(*mount);
  std::vector<std::string> parts;
  for (const auto& part : path) parts.push_back(part.string());
  for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
    if (mount != nullptr && i > 0) break;  // the role is the first part of a path in the tree
    if (std::find(kRoles.begin(), kRoles.end(), parts[i]) == kRoles.end()) continue;
    if (parts[i + 1] == "by-name" && i + 2 < parts.size()) return PathRef{parts[i], parts[i + 2]};
    if (is_fingerprint(parts[i + 1])) return PathRef{parts[i], parts[i + 1]};
  }
  return std::nullopt;
}

using Matches = std::vector<const GroupStatus*>;

template <class Accept>
Matches select(const NodeStatus& node, std::string_view role, Accept accept) {
  Matches matches;
  for (const GroupStatus& group : node.groups) {
    if ((role.empty() || group.role == role) && accept(group)) matches.push_back(&group);
  }
  return matches;
}

bool several_roles(const Matches& matches) {
  return std::any_of(matches.begin(), matches.end(),
                     [&](const GroupStatus* group) { return group->role != matches.front()->role; });
}

Result<GroupStatus> choose_by_fingerprint(const Matches& matches, std::string_view entry) {
  if (matches.size() == 1) return *matches.front();
  const bool same_print = std::all_of(matches.begin(), matches.end(), [&](const GroupStatus* group) {
    return group->fingerprint == matches.front()->fingerprint;
  });
  if (same_print)
    return fail(Reason::invalid, "target and draft0 both have an entry " + std::string(entry),
                "name one with --role", "--role");
  return fail(Reason::invalid, "several fingerprints begin with " + std::string(entry), "give more digits");
}

Result<GroupStatus> choose_by_name(const Matches& matches, std::string_view entry) {
  if (several_roles(matches))
    return fail(Reason::invalid, "target and draft0 both have an entry named '" + printable(entry) + "'",
                "name one with --role", "--role");
  const auto rank = [](const GroupStatus* group) {
    return std::pair(group->state == State::ready, group->since);
  };
  return **std::max_element(matches.begin(), matches.end(),
                            [&](const GroupStatus* a, const GroupStatus* b) { return rank(a) < rank(b); });
}

Result<GroupStatus> choose_by_word(const NodeStatus& node, std::string_view word, std::string_view role) {
  if (is_prefix(word)) {
    const Matches matches =
        select(node, role, [&](const GroupStatus& group) { return group.fingerprint.starts_with(word); });
    if (!matches.empty()) return choose_by_fingerprint(matches, word);
  }
  const Matches matches = select(node, role, [&](const GroupStatus& group) { return group.name == word; });
  if (!matches.empty()) return choose_by_name(matches, word);
  return fail(Reason::not_found,
              "no entry '" + printable(word) + "'" + (role.empty() ? "" : " of role " + std::string(role)),
              "wcache ls shows what there is; a part of a fingerprint needs at least 8 digits");
}

}  // namespace

Result<GroupStatus> resolve_entry(const NodeStatus& node, std::string_view entry, std::string_view role) {
  if (node.groups.empty())
    return fail(Reason::not_running, "nothing runs in " + node.run_dir,
                "start something with wcache preload, or name another --run-dir");
  if (entry.find('/') == std::string_view::npos) return choose_by_word(node, entry, role);
  const std::optional<PathRef> ref = parse_path(entry, node.mount ? &node.mount->path : nullptr);
  if (!ref)
    return fail(Reason::not_found, "'" + printable(entry) + "' is no path of an entry" +
                                       (node.mount ? " in " + node.mount->path : ""));
  if (!role.empty() && role != ref->role)
    return fail(Reason::invalid, "'" + printable(entry) + "' is not of role " + std::string(role), {},
                "--role");
  return choose_by_word(node, ref->word, ref->role);
}

std::optional<ExactEntry> exact_entry(std::string_view entry, std::string_view role,
                                      const std::function<std::vector<MountEntry>()>& mounts) {
  if (is_fingerprint(entry)) return ExactEntry{std::string(role), std::string(entry)};
  if (entry.find('/') == std::string_view::npos) return std::nullopt;
  for (const MountEntry& mount : mounts()) {
    if (mount.type != "fuse.wcachefs") continue;
    const std::optional<PathRef> ref = parse_path(entry, &mount.path);
    if (ref && is_fingerprint(ref->word) && (role.empty() || role == ref->role))
      return ExactEntry{ref->role, ref->word};
  }
  return std::nullopt;
}

std::string title_of(const GroupStatus& group) {
  return group.role + "/" + (group.fingerprint.empty() ? printable(group.name) : group.fingerprint);
}

}  // namespace wcache

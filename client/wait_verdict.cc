#include "client/wait_verdict.h"

#include <algorithm>

#include "client/entry_ref.h"
#include "core/format.h"

namespace wcache {
namespace {

bool is_meant(const GroupStatus& group, const WaitFor& what) {
  const bool any = what.name.empty() && what.fingerprint.empty();
  const std::string role = what.role.empty() && !any ? "target" : what.role;
  return (role.empty() || group.role == role) && (what.name.empty() || group.name == what.name) &&
         (what.fingerprint.empty() || group.fingerprint == what.fingerprint);
}

std::string words_of(const WaitFor& what) {
  if (!what.fingerprint.empty()) return "group with fingerprint " + what.fingerprint;
  if (!what.name.empty()) return "group named '" + printable(what.name) + "'";
  return what.role.empty() ? "group" : "group of role " + what.role;
}

/// Whether the files of its directory can be read: of an orphan on a device they cannot.
bool serves_files(const GroupStatus& group) {
  if (group.state == State::ready) return true;
  const auto lost = [](const RankStatus& rank) {
    return rank.state == State::orphaned && rank.tier == "cuda";
  };
  return group.state == State::orphaned && std::none_of(group.ranks.begin(), group.ranks.end(), lost);
}

}  // namespace

WaitVerdict judge(const NodeStatus& node, const WaitFor& what, bool mount_coming) {
  WaitVerdict verdict;
  std::vector<const GroupStatus*> groups;
  for (const GroupStatus& group : node.groups) {
    if (is_meant(group, what)) groups.push_back(&group);
  }
  if (groups.empty()) {
    verdict.missing = node.groups.empty() ? Error{Reason::not_running, "nothing runs in " + node.run_dir}
                                          : Error{Reason::not_found, "no " + words_of(what) + " is known"};
    return verdict;
  }
  verdict.done = true;
  for (const GroupStatus* group : groups) {
    if (group->state == State::failed) {
      const std::string why = group->reason + (group->message.empty() ? "" : ": " + group->message);
      verdict.failure = Error{Reason::internal, title_of(*group) + " failed: " + why, group->hint};
      verdict.done = false;
      return verdict;
    }
    const bool shown = !group->path.empty() || (!node.mount && !mount_coming);
    const bool serves = serves_files(*group);
    if (serves && shown) {
      verdict.paths.push_back(group->path.empty() ? "-" : group->path);
      continue;
    }
    verdict.done = false;
    const std::string state = serves ? "ready, but not mounted yet" : std::string(to_string(group->state));
    verdict.missing = Error{Reason::not_ready, title_of(*group) + " is " + state};
    if (group->state == State::orphaned)
      verdict.missing.hint = "its weights were on a device whose daemon has died: preload it again";
  }
  return verdict;
}

}  // namespace wcache

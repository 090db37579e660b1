#include "client/find_group.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "client/entry_ref.h"
#include "core/checkpoint/checkpoint.h"
#include "core/fingerprint.h"
#include "core/format.h"

namespace wcache {
namespace {

Result<std::vector<EntryPlan>> plans_of(const Checkpoint& checkpoint, Role role) {
  const std::uint32_t shards = role == Role::target ? shard_ranks(checkpoint) : 0;
  std::vector<EntryPlan> plans;
  if (shards == 0) plans.push_back(plan_checkpoint(checkpoint, role));
  for (std::uint32_t rank = 0; rank < shards; ++rank) {
    Result<EntryPlan> plan = plan_rank(checkpoint, role, rank, shards);
    if (!plan) return fail(std::move(plan.error()));
    plans.push_back(std::move(*plan));
  }
  return plans;
}

/// Of the group of all ranks; nullopt where a file of one is not remembered.
Result<std::optional<Fingerprint>> remembered_fingerprint(const Checkpoint& checkpoint, Role role,
                                                          DigestCache& cache) {
  const Result<std::vector<EntryPlan>> plans = plans_of(checkpoint, role);
  if (!plans) return fail(plans.error());
  std::map<std::string, Key::File> files;
  Key key;
  for (const EntryPlan& plan : *plans) {
    std::optional<Key> part = remembered_key(plan, cache);
    if (!part) return std::nullopt;
    for (const Key::File& file : part->files) files.try_emplace(file.name, file);
    key = std::move(*part);
  }
  key.files.clear();
  for (auto& [name, file] : files) key.files.push_back(std::move(file));
  return key.fingerprint();
}

Result<GroupStatus> find_model(const NodeStatus& node, const std::filesystem::path& model,
                               std::string_view role, const Environment& environment) {
  const Result<Checkpoint> checkpoint = open_checkpoint(model);
  if (!checkpoint) return fail(checkpoint.error());
  const Result<std::filesystem::path> directory = digest_cache_dir(environment, geteuid());
  DigestCache cache = directory ? DigestCache::open(*directory) : DigestCache();
  for (const Role candidate : {Role::target, Role::draft0}) {
    if (!role.empty() && role != to_string(candidate)) continue;
    const Result<std::optional<Fingerprint>> known = remembered_fingerprint(*checkpoint, candidate, cache);
    if (!known) return fail(known.error());
    if (!*known)
      return fail(Reason::not_found, "the fingerprint of " + printable(model.string()) + " is not remembered",
                  "wcache fingerprint reads the model once; or name its entry");
    Result<GroupStatus> group = resolve_entry(node, to_hex(**known), to_string(candidate));
    if (group || group.error().reason != Reason::not_found) return group;
  }
  return fail(Reason::not_found, printable(model.string()) + " is not served as it is now",
              "wcache preload serves it");
}

}  // namespace

Result<GroupStatus> find_group(const NodeStatus& node, std::string_view entry, std::string_view role,
                               const Environment& environment) {
  Result<GroupStatus> group = resolve_entry(node, entry, role);
  if (group || group.error().reason != Reason::not_found) return group;
  const std::filesystem::path path(entry);
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return group;
  return find_model(node, path, role, environment);
}

}  // namespace wcache

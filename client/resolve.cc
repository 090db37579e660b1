#include "client/resolve.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <optional>
#include <thread>
#include <utility>

#include "client/mount_default.h"
#include "client/node_status.h"
#include "core/format.h"
#include "daemon/supervisor/console.h"

namespace wcache {
namespace {

Result<DigestCache> open_digest_cache(const CommandContext& context) {
  const Result<std::filesystem::path> directory = digest_cache_dir(std::getenv, geteuid());
  if (!directory) return fail(directory.error());
  DigestCache cache = DigestCache::open(*directory);
  if (cache.trouble())
    print(context.err, "wcache: the digest cache is not used: " + printable(cache.trouble()->message) + "\n");
  return cache;
}

}  // namespace

Result<ResolvedKey> resolve_with_progress(const CommandContext& context, const EntryPlan& plan) {
  Result<DigestCache> cache = open_digest_cache(context);
  if (!cache) return fail(cache.error());
  Console console(context.out, context.err, Console::columns_of(context.err));
  const auto began = Console::Clock::now();
  ResolveOptions options;
  options.threads = std::clamp(std::thread::hardware_concurrency(), 1U, 8U);
  options.progress = [&](std::uint64_t done, std::uint64_t total) {
    const auto now = Console::Clock::now();
    const double seconds = std::chrono::duration<double>(now - began).count();
    GroupProgress row{std::string(to_string(plan.role)), plan.name, "reading", done, total, 0};
    if (seconds > 0) row.rate = static_cast<double>(done) / seconds;
    if (done < total) console.show({row}, now);
  };
  return resolve_key(plan, *cache, options);
}

Result<ResolvedGroup> resolve_group(const CommandContext& context, const draftroute::GroupRequest& request) {
  const Result<std::uint32_t> ranks = draftroute::ranks_with_bytes(request);
  if (!ranks) return fail(ranks.error());
  std::map<std::string, std::pair<Key::File, How>> files;
  std::optional<ResolvedGroup> group;
  for (std::uint32_t rank = 0; rank < *ranks; ++rank) {
    Result<EntryPlan> plan = draftroute::plan_group_rank(request, rank);
    if (!plan) return fail(std::move(plan.error()));
    Result<ResolvedKey> part = resolve_with_progress(context, *plan);
    if (!part) return fail(std::move(part.error()));
    for (std::size_t i = 0; i < part->key.files.size(); ++i)
      files.try_emplace(part->key.files[i].name, part->key.files[i], part->how[i]);
    if (!group) group = ResolvedGroup{std::move(*part), std::move(*plan)};
  }
  group->key.key.files.clear();
  group->key.how.clear();
  for (auto& [name, file] : files) {
    group->key.key.files.push_back(std::move(file.first));
    group->key.how.push_back(file.second);
  }
  return std::move(*group);
}

std::string path_in_tree(const CommandContext& context, Role role, const Fingerprint& fingerprint) {
  const Result<std::string> run_dir = context.run_dir();
  if (!run_dir) return {};
  const Result<NodeStatus> node = collect_status(*run_dir);
  return path_in_tree(node ? node->mount : std::nullopt, *run_dir, role, fingerprint);
}

}  // namespace wcache

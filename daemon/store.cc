#include "daemon/store.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "core/fingerprint.h"
#include "core/format.h"

namespace wcache {
namespace {

Result<EntryPlan> make_plan(const LoadRequest& request) {
  Result<EntryPlan> plan = draftroute::plan_group_rank(request.group, request.rank);
  if (plan && !request.name.empty()) plan->name = request.name;
  return plan;
}

/// The remembered digest of each image, for the fill to hold the bytes against; empty when there is no key.
std::vector<std::optional<Digest>> digests_in(const std::optional<Key>& key, const EntryPlan& plan) {
  std::vector<std::optional<Digest>> digests;
  if (!key) return digests;
  for (const ImagePlan& image : plan.images) {
    const auto found = std::find_if(key->files.begin(), key->files.end(),
                                    [&](const Key::File& file) { return file.name == image.name; });
    digests.push_back(found == key->files.end() ? std::nullopt : std::optional(found->digest));
  }
  return digests;
}

Status stopped(const std::stop_token& stop) {
  if (stop.stop_requested()) return fail(Reason::timeout, "stopped before the entry was ready");
  return {};
}

/// The key that the entry is published under, told to whom it concerns.
Result<Key> settle_key(const LoadRequest& request, Key own, const std::optional<Key>& remembered,
                       const LoadEvents& events) {
  if (remembered && own.fingerprint() != remembered->fingerprint())
    return fail(Reason::stale, "the files of " + printable(request.group.route.target) +
                                   " are not what the digest cache remembers");
  if (remembered && !request.grouped) return own;
  Result<Key> key = request.grouped ? events.agree(own) : Result<Key>(std::move(own));
  if (!key) return key;
  if (Status go_on = events.known(key->fingerprint()); !go_on) return fail(go_on.error());
  return key;
}

}  // namespace

Result<StoredEntry> load_entry(const LoadRequest& request, const LoadMachine& machine,
                               const LoadEvents& events, std::stop_token stop) {
  Result<EntryPlan> plan = make_plan(request);
  if (!plan) return fail(std::move(plan.error()));
  events.planned(*plan);
  const std::optional<Key> remembered = remembered_key(*plan, machine.cache);
  if (remembered && !request.grouped) {
    if (Status go_on = events.known(remembered->fingerprint()); !go_on) return fail(go_on.error());
  }
  if (Status go_on = stopped(stop); !go_on) return fail(go_on.error());
  if (Status fits = machine.budget(*plan); !fits) return fail(fits.error());

  Result<Arena> arena = Arena::create(*plan, machine.kernel, {}, stop);
  if (!arena) return fail(std::move(arena.error()));
  FillOptions options;
  options.note = machine.disk_note;
  options.remembered = digests_in(remembered, *plan);
  const std::int64_t began_ns = system_now_ns();
  Result<FillReport> report = fill(*plan, arena->images(), machine.disk, options, events.progress, stop);
  if (!report) return fail(std::move(report.error()));

  if (!remembered) remember_digests(*plan, report->digests, machine.cache, began_ns);
  const Result<Key> key = settle_key(request, key_of(*plan, report->digests), remembered, events);
  if (!key) return fail(key.error());
  const Fingerprint fingerprint = key->fingerprint();
  std::optional<GroupPlace> place;
  if (request.grouped) place = GroupPlace{request.node_ranks, *key};
  const Result<std::vector<std::byte>> manifest =
      build_manifest(*plan, report->digests, fingerprint, request.placement, place);
  if (!manifest) return fail(manifest.error());
  if (Status added = arena->add_manifest(*manifest); !added) return fail(added.error());
  if (Status go_on = stopped(stop); !go_on) return fail(go_on.error());
  Result<SealedArena> memory = std::move(*arena).seal();
  if (!memory) return fail(std::move(memory.error()));
  return StoredEntry{std::move(*plan), std::move(report->digests), fingerprint,  std::move(*memory),
                     manifest->size(), digest_of(*manifest),       report->path, std::move(report->note)};
}

}  // namespace wcache

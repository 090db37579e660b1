#include "daemon/store.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "core/checkpoint/checkpoint.h"
#include "core/fingerprint.h"
#include "core/key.h"

namespace wcache {
namespace {

Result<EntryPlan> make_plan(const LoadRequest& request) {
  Result<Checkpoint> checkpoint = open_checkpoint(request.model);
  if (!checkpoint) return fail(std::move(checkpoint.error()));
  EntryPlan plan = plan_checkpoint(std::move(*checkpoint), request.role);
  plan.rank = request.rank;
  if (!request.name.empty()) plan.name = request.name;
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

}  // namespace

Result<StoredEntry> load_entry(const LoadRequest& request, const LoadMachine& machine,
                               const LoadEvents& events, std::stop_token stop) {
  Result<EntryPlan> plan = make_plan(request);
  if (!plan) return fail(std::move(plan.error()));
  events.planned(*plan);
  const std::optional<Key> remembered = remembered_key(*plan, machine.cache);
  if (remembered) {
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

  const Fingerprint fingerprint = key_of(*plan, report->digests).fingerprint();
  if (!remembered) {
    remember_digests(*plan, report->digests, machine.cache, began_ns);
    if (Status go_on = events.known(fingerprint); !go_on) return fail(go_on.error());
  } else if (fingerprint != remembered->fingerprint()) {
    return fail(Reason::stale, "the files of " + plan->source + " are not what the digest cache remembers");
  }

  const Result<std::vector<std::byte>> manifest =
      build_manifest(*plan, report->digests, fingerprint, request.placement);
  if (!manifest) return fail(manifest.error());
  if (Status added = arena->add_manifest(*manifest); !added) return fail(added.error());
  if (Status go_on = stopped(stop); !go_on) return fail(go_on.error());
  Result<SealedArena> memory = std::move(*arena).seal();
  if (!memory) return fail(std::move(memory.error()));
  return StoredEntry{std::move(*plan), std::move(report->digests), fingerprint,  std::move(*memory),
                     manifest->size(), digest_of(*manifest),       report->path, std::move(report->note)};
}

}  // namespace wcache

#include "daemon/store.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "core/fingerprint.h"
#include "core/format.h"
#include "core/slab_plan.h"
#include "daemon/fill_entry.h"
#include "daemon/memory/cuda/loading.h"

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

/// Memory for an entry, allocated.
struct EntryMemory {
  Arena host;
  std::unique_ptr<CudaLoading> device;  // nullptr: the weights are in `host`

  FillSink* device_sink() const { return device ? &device->sink() : nullptr; }
};

/// Every limit is looked at before the first byte.
Result<EntryMemory> allocate(const EntryPlan& plan, const LoadMachine& machine, const std::stop_token& stop) {
  std::unique_ptr<CudaLoading> device;
  if (machine.device != nullptr) {
    auto prepared = CudaLoading::prepare(plan, *machine.device);
    if (!prepared) return fail(std::move(prepared.error()));
    device = std::move(*prepared);
  }
  MemoryNeed need{.host_nbytes = arena_nbytes(plan, !device)};
  if (device) {
    need.device_nbytes = device->slabs().nbytes();
    need.staging_nbytes = device->staging_bound(FillOptions{});
  }
  if (Status fits = machine.budget(need); !fits) return fail(fits.error());
  Result<Arena> arena = Arena::create(plan, machine.kernel, {.weights = !device}, stop);
  if (!arena) return fail(std::move(arena.error()));
  if (device)
    if (Status allocated = device->allocate(); !allocated) return fail(allocated.error());
  return EntryMemory{std::move(*arena), std::move(device)};
}

/// The fill is done: of the device what stays.
struct FilledDevice {
  std::unique_ptr<DeviceEntry> entry;
  SlabPlan slabs;
};
Result<FilledDevice> finish(CudaLoading* device) {
  if (device == nullptr) return FilledDevice{};
  SlabPlan slabs = device->slabs();
  auto entry = device->finish();
  if (!entry) return fail(std::move(entry.error()));
  return FilledDevice{std::move(*entry), std::move(slabs)};
}

Placement placement_of(const LoadRequest& request, const DeviceEntry* device) {
  Placement placement = request.placement;
  if (device != nullptr) {
    placement.tier = "cuda";
    placement.ipc_kind = ipc_kind(device->ipc());
  }
  return placement;
}

Result<std::vector<std::byte>> manifest_of(const EntryPlan& plan, const FillReport& report, const Key& key,
                                           const LoadRequest& request, const FilledDevice& device) {
  std::optional<GroupPlace> place;
  if (request.grouped) place = GroupPlace{request.node_ranks, key};
  return build_manifest(plan, report.digests, key.fingerprint(), placement_of(request, device.entry.get()),
                        place, device.entry ? &device.slabs : nullptr);
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

  Result<EntryMemory> memory = allocate(*plan, machine, stop);
  if (!memory) return fail(std::move(memory.error()));
  FillOptions options;
  options.note = machine.disk_note;
  options.stall_timeout = machine.stall_timeout;
  options.remembered = digests_in(remembered, *plan);
  const std::int64_t began_ns = system_now_ns();
  Result<FillReport> report = fill_entry(*plan, memory->host.images(), memory->device_sink(), machine.disk,
                                         options, events.progress, stop);
  if (!report) return fail(std::move(report.error()));
  Result<FilledDevice> device = finish(memory->device.get());
  if (!device) return fail(std::move(device.error()));

  if (!remembered) remember_digests(*plan, report->digests, machine.cache, began_ns);
  const Result<Key> key = settle_key(request, key_of(*plan, report->digests), remembered, events);
  if (!key) return fail(key.error());
  const Result<std::vector<std::byte>> manifest = manifest_of(*plan, *report, *key, request, *device);
  if (!manifest) return fail(manifest.error());
  if (Status added = memory->host.add_manifest(*manifest); !added) return fail(added.error());
  if (Status go_on = stopped(stop); !go_on) return fail(go_on.error());
  Result<SealedArena> sealed = std::move(memory->host).seal();
  if (!sealed) return fail(std::move(sealed.error()));
  return StoredEntry{std::move(*plan),   std::move(report->digests), key->fingerprint(),
                     std::move(*sealed), manifest->size(),           digest_of(*manifest),
                     report->path,       std::move(report->note),    std::move(device->entry)};
}

}  // namespace wcache

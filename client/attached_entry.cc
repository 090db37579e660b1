#include "client/attached_entry.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "client/entry_ref.h"
#include "core/format.h"
#include "ipc/run_dir.h"

namespace wcache {
namespace {

Status check_serves(const GroupStatus& group) {
  switch (group.state) {
    case State::ready:
    case State::stale:
    case State::orphaned:
      return {};
    case State::starting:
    case State::filling:
      return fail(Reason::not_ready, title_of(group) + " is " + std::string(to_string(group.state)),
                  "wait for it: wcache wait, or wait_ms");
    case State::failed:
      break;
  }
  return fail(reason_from_string(group.reason), title_of(group) + " failed: " + group.message, group.hint);
}

/// How well a rank serves, the best 0; nullopt: not at all.
std::optional<int> service_of(const RankStatus& rank) {
  if (rank.state == State::ready) return 0;
  if (rank.state == State::stale) return 1;
  if (rank.state == State::orphaned && rank.ipc_kind != "cuda-ipc") return 2;
  return std::nullopt;
}

/// Devices do not share memory: where a checkpoint is not sharded, each rank has all of it on its own. A rank
/// that failed early may not have said where.
bool whole_on_each(const GroupStatus& group) {
  const auto on_device = [](const RankStatus& rank) { return rank.tier == "cuda"; };
  return group.tp_size <= 1 && std::any_of(group.ranks.begin(), group.ranks.end(), on_device) &&
         std::all_of(group.ranks.begin(), group.ranks.end(),
                     [&](const RankStatus& rank) { return on_device(rank) || rank.tier.empty(); });
}

bool whole_on_each(const ManifestView& manifest) {
  return manifest.tp_size() <= 1 && manifest.placement().tier == "cuda";
}

/// Of ranks that each have the whole one is enough: one whose device this process may use, which serves best,
/// the lowest.
const RankStatus* one_of(const std::vector<const RankStatus*>& ranks, ImportedSlabs& slabs) {
  std::vector<const RankStatus*> serving;
  std::copy_if(ranks.begin(), ranks.end(), std::back_inserter(serving),
               [](const RankStatus* rank) { return service_of(*rank).has_value(); });
  if (serving.empty()) return ranks.front();
  if (serving.size() == 1) return serving.front();
  const auto order = [&](const RankStatus* rank) {
    return std::pair(!slabs.visible(rank->device_uuid), *service_of(*rank));
  };
  return std::ranges::min(serving, {}, order);
}

/// Sorted by rank.
std::vector<const RankStatus*> ranks_meant(const GroupStatus& group, std::optional<std::uint32_t> rank,
                                           ImportedSlabs& slabs) {
  std::vector<const RankStatus*> meant;
  for (const RankStatus& candidate : group.ranks)
    if (!rank || candidate.rank == *rank) meant.push_back(&candidate);
  if (!meant.empty() && whole_on_each(group)) meant = {one_of(meant, slabs)};
  return meant;
}

Result<Door> door_of(const GroupStatus& group, const RankStatus& rank, const RunDir& run_dir) {
  if (rank.state != State::orphaned) return Door{rank.socket};
  if (rank.ipc_kind == "cuda-ipc")
    return fail(Reason::not_running,
                "the daemon of " + title_of(group) + " has died, and its memory on the device with it",
                "preload it again; --ipc vmm lets memory outlive its daemon");
  return Door{run_dir.mount_socket(), {group.role, group.fingerprint, rank.rank}};
}

using Parts = std::vector<std::unique_ptr<AttachedPart>>;

Error some_are_missing(const std::string& title, std::size_t found, std::size_t expected) {
  return Error{Reason::not_ready, std::to_string(found) + " of " + std::to_string(expected) + " ranks of " +
                                      title + " are served"};
}

/// The sockets of an entry's daemons. A role that is "" becomes theirs; invalid where there are two.
Result<std::vector<std::string>> sockets_of(ExactEntry& entry, const RunDir& run_dir) {
  const Result<std::vector<RunDir::Socket>> sockets = run_dir.sockets();
  if (!sockets) return fail(sockets.error());
  std::vector<std::string> paths;
  std::set<Role> roles;
  for (const RunDir::Socket& socket : *sockets) {
    if (socket.kind != RunDir::SocketKind::rank ||
        !entry.fingerprint.starts_with(socket.fingerprint_prefix) ||
        (!entry.role.empty() && entry.role != to_string(socket.role)))
      continue;
    paths.push_back(socket.path);
    roles.insert(socket.role);
  }
  if (roles.size() > 1) return fail(Reason::invalid, "both roles have an entry " + entry.fingerprint);
  if (!roles.empty()) entry.role = to_string(*roles.begin());
  return paths;
}

/// Sorted by rank.
Result<Parts> attach_to_all(const ExactEntry& entry, const std::vector<std::string>& sockets,
                            ImportedSlabs& slabs, Deadline deadline) {
  Parts parts;
  for (const std::string& socket : sockets) {
    auto part = AttachedPart::attach(entry, Door{socket}, slabs, deadline);
    if (!part) return fail(std::move(part.error()));
    parts.push_back(std::move(*part));
  }
  std::ranges::sort(parts, {}, [](const auto& part) { return part->manifest().rank(); });
  return parts;
}

/// Those of them that are meant: all, the one asked for, or, of those that have the whole each, the lowest
/// that can be used.
Result<Parts> parts_meant(Parts parts, const std::string& title, std::optional<std::uint32_t> rank,
                          ImportedSlabs& slabs) {
  if (rank) std::erase_if(parts, [&](const auto& part) { return part->manifest().rank() != *rank; });
  if (parts.empty()) return fail(some_are_missing(title, 0, 1));
  const ManifestView& manifest = parts.front()->manifest();
  if (!rank && !whole_on_each(manifest)) {
    if (parts.size() == manifest.node_ranks()) return parts;
    return fail(some_are_missing(title, parts.size(), manifest.node_ranks()));
  }
  auto chosen = parts.begin();
  if (parts.size() > 1)
    chosen = std::ranges::find_if(
        parts, [&](const auto& part) { return slabs.visible(part->placement().device_uuid); });
  Parts one;
  one.push_back(std::move(chosen == parts.end() ? parts.front() : *chosen));
  return one;
}

bool same_tensor(const ManifestView::Tensor& a, const ManifestView::Tensor& b) {
  return a.digest == b.digest && a.dtype == b.dtype &&
         std::equal(a.shape.begin(), a.shape.end(), b.shape.begin(), b.shape.end());
}

}  // namespace

AttachedEntry::AttachedEntry(ExactEntry entry, std::vector<std::unique_ptr<AttachedPart>> parts)
    : entry_(std::move(entry)), parts_(std::move(parts)) {
  const ManifestView& lowest = parts_.front()->manifest();
  name_ = lowest.name();
  layout_ = lowest.layout();
  source_ = lowest.source();
  for (const auto& part : parts_) {
    tensor_count_ += part->manifest().tensor_count();
    nbytes_ += part->manifest().nbytes();
  }
}

Result<std::unique_ptr<AttachedEntry>> AttachedEntry::attach(const GroupStatus& group,
                                                             const std::string& run_dir,
                                                             std::optional<std::uint32_t> rank,
                                                             ImportedSlabs& slabs, Deadline deadline) {
  const std::vector<const RankStatus*> meant = ranks_meant(group, rank, slabs);
  // One of several that have the whole serves whatever has become of the others.
  const bool one_serves = whole_on_each(group) && meant.size() == 1 && service_of(*meant.front());
  if (!one_serves) {
    if (Status serves = check_serves(group); !serves) return fail(std::move(serves.error()));
  }
  if (meant.empty())
    return fail(Reason::not_found,
                title_of(group) + " has no rank " + std::to_string(rank.value_or(0)) + " on this node", {},
                "rank");
  const Result<RunDir> meeting = RunDir::open(run_dir);
  if (!meeting) return fail(meeting.error());
  const ExactEntry entry{group.role, group.fingerprint};
  Parts parts;
  for (const RankStatus* candidate : meant) {
    const Result<Door> door = door_of(group, *candidate, *meeting);
    if (!door) return fail(door.error());
    auto part = AttachedPart::attach(entry, *door, slabs, deadline);
    if (!part) return fail(std::move(part.error()));
    parts.push_back(std::move(*part));
  }
  const std::size_t expected = rank || whole_on_each(group) ? 1 : parts.front()->manifest().node_ranks();
  if (parts.size() != expected) return fail(some_are_missing(title_of(group), parts.size(), expected));
  return std::unique_ptr<AttachedEntry>(new AttachedEntry(entry, std::move(parts)));
}

Result<std::unique_ptr<AttachedEntry>> AttachedEntry::attach_exact(ExactEntry entry,
                                                                   const std::string& run_dir,
                                                                   std::optional<std::uint32_t> rank,
                                                                   ImportedSlabs& slabs, Deadline deadline) {
  const Result<RunDir> meeting = RunDir::open(run_dir);
  if (!meeting) return fail(meeting.error());
  const Result<std::vector<std::string>> sockets = sockets_of(entry, *meeting);
  if (!sockets) return fail(sockets.error());
  Result<Parts> all = attach_to_all(entry, *sockets, slabs, deadline);
  if (!all) return fail(std::move(all.error()));
  Result<Parts> parts = parts_meant(std::move(*all), entry.role + "/" + entry.fingerprint, rank, slabs);
  if (!parts) return fail(std::move(parts.error()));
  return std::unique_ptr<AttachedEntry>(new AttachedEntry(std::move(entry), std::move(*parts)));
}

bool AttachedEntry::survives() const {
  return std::none_of(parts_.begin(), parts_.end(),
                      [](const auto& part) { return part->placement().ipc_kind == "cuda-ipc"; });
}

Result<AttachedEntry::Place> AttachedEntry::place_of(std::size_t number) const {
  std::size_t first = 0;
  for (const auto& part : parts_) {
    const std::size_t count = part->manifest().tensor_count();
    if (number - first < count) return Place{part.get(), number - first};
    first += count;
  }
  return fail(Reason::invalid, "there is no tensor " + std::to_string(number) + ": " + role() + "/" +
                                   fingerprint() + " has " + std::to_string(tensor_count_));
}

Result<AttachedTensor> AttachedEntry::tensor(std::size_t number) const {
  const Result<Place> place = place_of(number);
  if (!place) return fail(place.error());
  Result<AttachedTensor> tensor = place->part->tensor(place->row);
  if (tensor) tensor->number = number;
  return tensor;
}

Result<AttachedTensor> AttachedEntry::describe(std::size_t number) const {
  const Result<Place> place = place_of(number);
  if (!place) return fail(place.error());
  Result<AttachedTensor> tensor = place->part->describe(place->row);
  if (tensor) tensor->number = number;
  return tensor;
}

Status AttachedEntry::read(std::size_t number, std::uint64_t offset, std::span<std::byte> out) const {
  const Result<Place> place = place_of(number);
  if (!place) return fail(place.error());
  return place->part->read(place->row, offset, out);
}

Result<std::size_t> AttachedEntry::number_of(std::string_view name) const {
  std::optional<Place> found;
  std::size_t number = 0;
  std::size_t first = 0;
  for (const auto& part : parts_) {
    const std::optional<std::size_t> row = part->manifest().find_tensor(name);
    if (row && !found) {
      found = Place{part.get(), *row};
      number = first + *row;
    } else if (row) {
      const auto one = found->part->manifest().tensor(found->row);
      const auto other = part->manifest().tensor(*row);
      if (!one || !other || !same_tensor(*one, *other))
        return fail(Reason::invalid, "several ranks have a tensor '" + printable(name) + "' of their own",
                    "open one rank, or iterate over all tensors", "rank");
    }
    first += part->manifest().tensor_count();
  }
  if (found) return number;
  return fail(Reason::not_found, "no tensor '" + printable(name) + "' in " + role() + "/" + fingerprint());
}

}  // namespace wcache

#include "client/attached_entry.h"

#include <algorithm>
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

/// Devices do not share memory: where a checkpoint is not sharded, each rank has all of it on its own.
bool whole_on_each(const GroupStatus& group) {
  return group.tp_size <= 1 && std::all_of(group.ranks.begin(), group.ranks.end(),
                                           [](const RankStatus& rank) { return rank.tier == "cuda"; });
}

/// Of ranks that each have the whole one is enough: the lowest whose device this process may use.
const RankStatus* one_of(const std::vector<const RankStatus*>& ranks, ImportedSlabs& slabs) {
  if (ranks.size() == 1) return ranks.front();
  const auto usable = std::find_if(ranks.begin(), ranks.end(), [&](const RankStatus* rank) {
    return slabs.visible(rank->device_uuid);
  });
  return usable == ranks.end() ? ranks.front() : *usable;
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

bool same_tensor(const ManifestView::Tensor& a, const ManifestView::Tensor& b) {
  return a.digest == b.digest && a.dtype == b.dtype &&
         std::equal(a.shape.begin(), a.shape.end(), b.shape.begin(), b.shape.end());
}

}  // namespace

AttachedEntry::AttachedEntry(const GroupStatus& group)
    : role_(group.role),
      fingerprint_(group.fingerprint),
      name_(group.name),
      layout_(group.layout),
      source_(group.source) {}

Result<std::unique_ptr<AttachedEntry>> AttachedEntry::attach(const GroupStatus& group,
                                                             const std::string& run_dir,
                                                             std::optional<std::uint32_t> rank,
                                                             ImportedSlabs& slabs, Deadline deadline) {
  if (Status serves = check_serves(group); !serves) return fail(std::move(serves.error()));
  const Result<RunDir> meeting = RunDir::open(run_dir);
  if (!meeting) return fail(meeting.error());
  std::unique_ptr<AttachedEntry> entry(new AttachedEntry(group));
  for (const RankStatus* candidate : ranks_meant(group, rank, slabs)) {
    auto part = AttachedPart::attach(group, *candidate, meeting->mount_socket(), slabs, deadline);
    if (!part) return fail(std::move(part.error()));
    entry->add(std::move(*part));
  }
  if (entry->parts_.empty())
    return fail(Reason::not_found,
                title_of(group) + " has no rank " + std::to_string(rank.value_or(0)) + " on this node", {},
                "rank");
  const std::size_t expected =
      rank || whole_on_each(group) ? 1 : entry->parts_.front()->manifest().node_ranks();
  if (entry->parts_.size() != expected)
    return fail(Reason::not_ready, std::to_string(entry->parts_.size()) + " of " + std::to_string(expected) +
                                       " ranks of " + title_of(group) + " are served");
  return entry;
}

void AttachedEntry::add(std::unique_ptr<AttachedPart> part) {
  tensor_count_ += part->manifest().tensor_count();
  nbytes_ += part->manifest().nbytes();
  parts_.push_back(std::move(part));
}

bool AttachedEntry::survives() const {
  return std::none_of(parts_.begin(), parts_.end(),
                      [](const auto& part) { return part->placement().ipc_kind == "cuda-ipc"; });
}

Result<AttachedEntry::Place> AttachedEntry::place_of(std::size_t number) const {
  std::size_t first = 0;
  for (const auto& part : parts_) {
    const std::size_t count = part->manifest().tensor_count();
    if (number - first < count) return Place{part.get(), first, number - first};
    first += count;
  }
  return fail(Reason::invalid, "there is no tensor " + std::to_string(number) + ": " + role_ + "/" +
                                   fingerprint_ + " has " + std::to_string(tensor_count_));
}

Result<AttachedTensor> AttachedEntry::tensor_at(const Place& place) {
  Result<AttachedTensor> tensor = place.part->tensor(place.row);
  if (tensor) tensor->number = place.first + place.row;
  return tensor;
}

Result<AttachedTensor> AttachedEntry::tensor(std::size_t number) const {
  const Result<Place> place = place_of(number);
  if (!place) return fail(place.error());
  return tensor_at(*place);
}

Status AttachedEntry::read(std::size_t number, std::uint64_t offset, std::span<std::byte> out) const {
  const Result<Place> place = place_of(number);
  if (!place) return fail(place.error());
  return place->part->read(place->row, offset, out);
}

Result<AttachedTensor> AttachedEntry::find(std::string_view name) const {
  std::optional<Place> found;
  std::size_t first = 0;
  for (const auto& part : parts_) {
    const std::optional<std::size_t> row = part->manifest().find_tensor(name);
    if (row && !found) {
      found = Place{part.get(), first, *row};
    } else if (row) {
      const auto one = found->part->manifest().tensor(found->row);
      const auto other = part->manifest().tensor(*row);
      if (!one || !other || !same_tensor(*one, *other))
        return fail(Reason::invalid, "several ranks have a tensor '" + printable(name) + "' of their own",
                    "open one rank, or iterate over all tensors", "rank");
    }
    first += part->manifest().tensor_count();
  }
  if (found) return tensor_at(*found);
  return fail(Reason::not_found, "no tensor '" + printable(name) + "' in " + role_ + "/" + fingerprint_);
}

}  // namespace wcache

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "client/attached_part.h"
#include "client/node_status.h"
#include "core/result.h"
#include "ipc/deadline.h"

namespace wcache {

/// The ranks of one entry, attached to: where their tensors are for this process. Safe for concurrent use.
class AttachedEntry {
 public:
  /// Attaches to all ranks of a group, or to one; of ranks that hold the whole entry on a device each, to the
  /// lowest. A rank whose daemon has died is attached to through wcachefs, which keeps what can be kept.
  /// not_ready while it fills, not_running where nothing is kept of it, the group's own reason where it
  /// failed; mismatch and corrupt for a daemon that hands out something else than it announced. Nothing here
  /// is per tensor, and no device is touched. `slabs` is borrowed and must outlive the entry.
  static Result<std::unique_ptr<AttachedEntry>> attach(const GroupStatus& group, const std::string& run_dir,
                                                       std::optional<std::uint32_t> rank,
                                                       ImportedSlabs& slabs, Deadline deadline);

  /// Rank by rank, sorted by name in each. invalid beyond the last; otherwise as AttachedPart::tensor.
  Result<AttachedTensor> tensor(std::size_t number) const;

  /// not_found; invalid where ranks have different ones of that name.
  Result<AttachedTensor> find(std::string_view name) const;

  /// Copies bytes of a tensor into host memory.
  Status read(std::size_t number, std::uint64_t offset, std::span<std::byte> out) const;

  std::size_t tensor_count() const { return tensor_count_; }
  std::size_t ranks() const { return parts_.size(); }
  const std::string& role() const { return role_; }
  const std::string& fingerprint() const { return fingerprint_; }
  const std::string& name() const { return name_; }
  const std::string& layout() const { return layout_; }
  const std::string& source() const { return source_; }
  std::uint64_t nbytes() const { return nbytes_; }
  const Placement& placement() const { return parts_.front()->placement(); }  ///< of the lowest rank
  bool survives() const;  ///< whether what is mapped here outlives its daemons

 private:
  /// A tensor of a part: its number in the entry is `first` + `row`.
  struct Place {
    const AttachedPart* part = nullptr;
    std::size_t first = 0;
    std::size_t row = 0;
  };

  explicit AttachedEntry(const GroupStatus& group);
  void add(std::unique_ptr<AttachedPart> part);
  Result<Place> place_of(std::size_t number) const;
  static Result<AttachedTensor> tensor_at(const Place& place);

  std::string role_, fingerprint_, name_, layout_, source_;
  std::uint64_t nbytes_ = 0;
  std::size_t tensor_count_ = 0;
  std::vector<std::unique_ptr<AttachedPart>> parts_;  // one at least, by rank
};

}  // namespace wcache

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
  /// lowest that serves and whose device this process may use, which loads the driver. A rank whose daemon
  /// has died is attached to through wcachefs, which keeps what can be kept. not_ready while it fills,
  /// not_running where nothing is kept of it, the group's own reason where it failed; mismatch and corrupt
  /// for a daemon that hands out something else than it announced. Nothing here is per tensor, and no device
  /// is touched. `slabs` is borrowed and must outlive the entry.
  static Result<std::unique_ptr<AttachedEntry>> attach(const GroupStatus& group, const std::string& run_dir,
                                                       std::optional<std::uint32_t> rank,
                                                       ImportedSlabs& slabs, Deadline deadline);

  /// The same by the sockets of that entry's daemons, and nobody else is asked anything: one message a rank.
  /// A role of "" is whichever of the two there is. timeout where a daemon does not answer; any other error
  /// says no more than that not all of the entry is served so: who wants to know why attaches to the group.
  static Result<std::unique_ptr<AttachedEntry>> attach_exact(ExactEntry entry, const std::string& run_dir,
                                                             std::optional<std::uint32_t> rank,
                                                             ImportedSlabs& slabs, Deadline deadline);

  /// Rank by rank, sorted by name in each. invalid beyond the last; otherwise as AttachedPart::tensor.
  Result<AttachedTensor> tensor(std::size_t number) const;

  /// Without asking the device: as AttachedPart::describe.
  Result<AttachedTensor> describe(std::size_t number) const;

  /// By name. not_found; invalid where ranks have different ones of that name.
  Result<std::size_t> number_of(std::string_view name) const;

  /// Copies bytes of a tensor into host memory.
  Status read(std::size_t number, std::uint64_t offset, std::span<std::byte> out) const;

  std::size_t tensor_count() const { return tensor_count_; }
  std::size_t ranks() const { return parts_.size(); }
  const std::string& role() const { return entry_.role; }
  const std::string& fingerprint() const { return entry_.fingerprint; }
  const std::string& name() const { return name_; }
  const std::string& layout() const { return layout_; }
  const std::string& source() const { return source_; }
  std::uint64_t nbytes() const { return nbytes_; }
  const Placement& placement() const { return parts_.front()->placement(); }  ///< of the lowest rank
  bool survives() const;  ///< whether what is mapped here outlives its daemons

 private:
  struct Place {
    const AttachedPart* part = nullptr;
    std::size_t row = 0;
  };

  AttachedEntry(ExactEntry entry, std::vector<std::unique_ptr<AttachedPart>> parts);
  Result<Place> place_of(std::size_t number) const;

  const ExactEntry entry_;
  std::string name_, layout_, source_;
  std::uint64_t nbytes_ = 0;
  std::size_t tensor_count_ = 0;
  std::vector<std::unique_ptr<AttachedPart>> parts_;  // one at least, by rank
};

}  // namespace wcache

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "client/node_status.h"
#include "core/fd.h"
#include "core/manifest.h"
#include "core/result.h"
#include "ipc/client.h"
#include "ipc/deadline.h"

namespace wcache {

/// The ranks of one entry in host memory, attached to: their connections (the leases), their manifests, and
/// their files, each mapped read-only when it is first asked for. Safe for concurrent use.
class AttachedEntry {
 public:
  /// Attaches to all ranks of a group, or to one. not_ready while it fills, not_running where its daemon has
  /// died, the group's own reason where it failed; mismatch and corrupt for a daemon that hands out something
  /// else than it announced; unsupported for memory that is not the host's. Nothing here is per tensor.
  static Result<std::unique_ptr<AttachedEntry>> attach(const GroupStatus& group,
                                                       std::optional<std::uint32_t> rank, Deadline deadline);

  struct Tensor {
    ManifestView::Tensor row;
    const std::byte* data = nullptr;  ///< nullptr for an empty one
    const char* file = nullptr;       ///< ends with NUL
    std::uint32_t rank = 0;
  };

  /// Rank by rank, sorted by name in each. invalid beyond the last; corrupt for a row that is damaged.
  Result<Tensor> tensor(std::size_t number) const;

  /// not_found; invalid where ranks have different ones of that name.
  Result<Tensor> find(std::string_view name) const;

  std::size_t tensor_count() const { return tensor_count_; }
  std::size_t ranks() const { return parts_.size(); }
  const std::string& role() const { return role_; }
  const std::string& fingerprint() const { return fingerprint_; }
  const std::string& name() const { return name_; }
  const std::string& layout() const { return layout_; }
  const std::string& source() const { return source_; }
  std::uint64_t nbytes() const { return nbytes_; }

 private:
  struct Image {
    std::string name;
    std::uint64_t nbytes = 0;
    std::atomic<const std::byte*> data = nullptr;  ///< set once `mapping` is there
    std::mutex mutex;                              ///< guards what follows
    Fd fd;                                         ///< until it is mapped
    Mapping mapping;
  };
  struct Part {
    Connection lease;
    Mapping bytes;
    ManifestView manifest;
    std::vector<std::unique_ptr<Image>> images;
  };

  explicit AttachedEntry(const GroupStatus& group);
  Status add(const RankStatus& rank, Deadline deadline);
  Status check_belongs(const ManifestView& manifest) const;
  static Result<std::vector<std::unique_ptr<Image>>> take_images(const ManifestView& manifest,
                                                                 std::vector<Fd> fds);
  static Result<const std::byte*> data_of(Image& image);
  static Result<Tensor> tensor_of(const Part& part, std::size_t row);

  std::string role_, fingerprint_, name_, layout_, source_;
  std::uint64_t nbytes_ = 0;
  std::size_t tensor_count_ = 0;
  std::vector<Part> parts_;
};

}  // namespace wcache

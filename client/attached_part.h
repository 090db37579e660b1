#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "client/node_status.h"
#include "core/fd.h"
#include "core/manifest.h"
#include "core/result.h"
#include "daemon/memory/cuda/import.h"
#include "ipc/client.h"
#include "ipc/deadline.h"

namespace wcache {

/// The device of what is in host memory.
inline constexpr std::int32_t kHostDevice = -1;

/// A tensor, and where its bytes are for this process. `data` and `base` are addresses on `device`.
struct AttachedTensor {
  ManifestView::Tensor row;
  std::size_t number = 0;  ///< in the entry
  std::uint32_t rank = 0;
  const char* file = nullptr;       ///< ends with NUL
  const std::byte* data = nullptr;  ///< nullptr for an empty one
  const std::byte* base = nullptr;  ///< of the file (in host memory) or slab that it lies in
  std::uint64_t base_nbytes = 0;
  std::int32_t device = kHostDevice;  ///< of CUDA's, as this process's driver counts
  bool read_only = true;              ///< false where the driver could not make it so
};

/// One rank of an entry, attached to: the connection (the lease), the manifest, and the rank's memory, each
/// file or slab of which is mapped when it is first asked for. Safe for concurrent use.
class AttachedPart {
 public:
  /// Attaches to the daemon, or, where it has died, to the wcachefs at `mount_socket`. `slabs` is borrowed
  /// and must outlive the part. Errors are those of AttachedEntry::attach.
  static Result<std::unique_ptr<AttachedPart>> attach(const GroupStatus& group, const RankStatus& rank,
                                                      const std::string& mount_socket, ImportedSlabs& slabs,
                                                      Deadline deadline);

  const ManifestView& manifest() const { return manifest_; }
  const Placement& placement() const { return placement_; }

  /// By its row in the manifest. `number` is left at 0. corrupt for a row that is damaged; what mapping its
  /// memory gave.
  Result<AttachedTensor> tensor(std::size_t row) const;

  /// Copies bytes of a tensor, from the device too. invalid for a range beyond it.
  Status read(std::size_t row, std::uint64_t offset, std::span<std::byte> out) const;

 private:
  struct Image {
    std::string name;
    std::uint64_t nbytes = 0;
    std::atomic<const std::byte*> data = nullptr;  ///< set once `mapping` is there
    std::mutex mutex;                              ///< guards what follows
    Fd fd;                                         ///< until it is mapped; empty for a file on a device
    Mapping mapping;
  };
  struct Slab {
    std::atomic<const ImportedSlab*> imported = nullptr;  ///< set once `import` is there
    std::mutex mutex;                                     ///< guards what follows
    Fd fd;                                                ///< until it is imported
    std::optional<DeviceHandle> handle;
    std::optional<ImportedSlab> import;
  };

  AttachedPart(Connection lease, Mapping bytes, const ManifestView& manifest, ImportedSlabs& slabs)
      : lease_(std::move(lease)),
        bytes_(std::move(bytes)),
        manifest_(manifest),
        placement_(manifest.placement()),
        imported_(slabs) {}
  Status take_images(std::vector<Fd> fds);
  void take_slabs(Attachment& attachment);
  static Result<const std::byte*> data_of(Image& image);
  Result<const ImportedSlab*> imported(std::size_t number) const;
  Result<ManifestView::Tensor> row_of(std::size_t row) const;

  const Connection lease_;  // the last to go
  const Mapping bytes_;
  const ManifestView manifest_;
  const Placement placement_;
  ImportedSlabs& imported_;
  std::string instance_;
  bool same_pid_namespace_ = true;
  std::vector<std::unique_ptr<Image>> images_;  // by the manifest's files
  std::vector<std::unique_ptr<Slab>> slabs_;    // by the manifest's slabs
};

}  // namespace wcache

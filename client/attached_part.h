#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "client/entry_ref.h"
#include "core/fd.h"
#include "core/manifest.h"
#include "core/result.h"
#include "daemon/memory/cuda/import.h"
#include "ipc/client.h"
#include "ipc/connection.h"
#include "ipc/deadline.h"
#include "ipc/protocol.h"

namespace wcache {

/// The device of what is in host memory, and of what is on one that has not been asked.
inline constexpr std::int32_t kHostDevice = -1;
inline constexpr std::int32_t kDeviceNotAsked = -2;

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

/// Where a rank is attached to, and as what: the daemon itself, or, where it has died, wcachefs.
struct Door {
  std::string socket;
  AttachRequest request = {};
};

/// One rank of an entry, attached to: the connection (the lease), the manifest, and the rank's memory: files
/// are mapped, a slab is when it is first asked for. Safe for concurrent use.
class AttachedPart {
 public:
  /// One message. `slabs` is borrowed and must outlive the part. Errors are those of AttachedEntry::attach.
  static Result<std::unique_ptr<AttachedPart>> attach(const ExactEntry& entry, const Door& door,
                                                      ImportedSlabs& slabs, Deadline deadline);

  const ManifestView& manifest() const { return manifest_; }
  const Placement& placement() const { return placement_; }

  /// By its row in the manifest. `number` is left at 0. corrupt for a row that is damaged; what mapping its
  /// memory gave.
  Result<AttachedTensor> tensor(std::size_t row) const;

  /// The same without asking the device: of what is on one, `data` and `base` stay away.
  Result<AttachedTensor> describe(std::size_t row) const;

  /// Copies bytes of a tensor, from the device too. invalid for a range beyond it.
  Status read(std::size_t row, std::uint64_t offset, std::span<std::byte> out) const;

 private:
  struct Image {
    std::string name;
    Mapping mapping;  ///< empty for a file on a device
  };
  /// No lock: a process made by fork(2) meanwhile must not wait for a thread of its parent's.
  struct Slab {
    ~Slab() { delete imported.load(); }
    Fd fd;
    std::optional<DeviceHandle> handle;
    std::atomic<const ImportedSlab*> imported = nullptr;  ///< once it is mapped; owned
  };

  AttachedPart(Connection lease, Mapping bytes, const ManifestView& manifest, ImportedSlabs& slabs)
      : lease_(std::move(lease)),
        bytes_(std::move(bytes)),
        manifest_(manifest),
        placement_(manifest.placement()),
        imported_(slabs) {}
  Status take_images(std::vector<Fd> fds);
  void take_slabs(Attachment& attachment);
  Result<const ImportedSlab*> imported(std::size_t number) const;

  const Connection lease_;  // the last to go
  const Mapping bytes_;
  const ManifestView manifest_;
  const Placement placement_;
  ImportedSlabs& imported_;
  std::string instance_;
  bool same_pid_namespace_ = true;
  std::vector<Image> images_;                 // by the manifest's files
  std::vector<std::unique_ptr<Slab>> slabs_;  // by the manifest's slabs
};

}  // namespace wcache

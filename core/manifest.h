#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/digest.h"
#include "core/entry_plan.h"
#include "core/key.h"
#include "core/result.h"
#include "core/slab_plan.h"

namespace wcache {

/// What the fill learned about one image of an EntryPlan: one digest a segment, in the plan's order, and the
/// file's.
struct ImageDigests {
  Digest file;
  std::vector<Digest> segments;
};

/// How the bytes of weights are shared: by opening their file, by a descriptor or by a CUipcMemHandle a slab.
inline constexpr std::string_view kIpcFile = "file";
inline constexpr std::string_view kIpcVmm = "cuda-vmm";
inline constexpr std::string_view kIpcLegacy = "cuda-ipc";

/// Where the bytes are; not part of the key.
struct Placement {
  std::string tier = "host";
  std::string device_uuid;  ///< "HOST-0", "GPU-..."
  std::string ipc_kind{kIpcFile};
};

/// A rank's place in a group of several: what its manifest says of the others.
struct GroupPlace {
  std::uint32_t node_ranks = 1;  ///< ranks of the group on this node: the entry is whole when all are there
  Key key;                       ///< the whole group's, of every rank on every node
};

/// The key of an entry whose one rank holds `plan`, with digests in the order of plan.images.
Key key_of(const EntryPlan& plan, std::span<const ImageDigests> digests);

/// Serialises the manifest (manifest.fbs). File row i is plan.images[i] (sorted by name already); tensors
/// come out sorted by name. Reason::unsupported for what the format cannot hold (2 GiB of table, 65535
/// dimensions or dtypes), internal where plan and digests do not belong together. `place`: of a rank that is
/// not alone in its group. `slabs`: of an entry on a device, borrowed.
Result<std::vector<std::byte>> build_manifest(const EntryPlan& plan, std::span<const ImageDigests> digests,
                                              const Fingerprint& fingerprint, const Placement& placement,
                                              const std::optional<GroupPlace>& place = std::nullopt,
                                              const SlabPlan* slabs = nullptr);

/// A read-only view of a serialised manifest. Borrows the bytes (8-byte aligned, and nobody writes them any
/// more), which may come from another process: `open` verifies the frame in a time that does not depend on
/// the number of files and tensors, every accessor checks its own bounds and answers with an empty view or
/// nullopt for a row that points outside of its table or its file. A name found in several files is found in
/// one of them. Safe for concurrent use.
class ManifestView {
 public:
  static Result<ManifestView> open(std::span<const std::byte> bytes);

  struct File {
    std::string_view name;
    FileKind kind = FileKind::other;
    std::uint64_t nbytes = 0;
    std::int64_t mtime_ns = 0;
    std::uint64_t tensors = 0;
    Digest digest;
  };
  struct Tensor {
    std::string_view name;
    std::string_view dtype;
    std::span<const std::uint64_t> shape;
    std::uint32_t file = 0;
    std::uint64_t offset = 0;  ///< in the file
    std::uint64_t nbytes = 0;
    std::uint32_t slab = 0;
    std::uint64_t slab_offset = 0;
    Digest digest;
  };

  std::string_view role() const;
  std::string_view layout() const;
  Fingerprint fingerprint() const;
  std::uint32_t rank() const;
  std::uint32_t tp_size() const;
  std::string_view name() const;
  std::string_view source() const;
  std::string_view architecture() const;
  std::string_view dtype() const;
  std::string_view quantization() const;
  Placement placement() const;

  std::size_t file_count() const;
  std::optional<File> file(std::size_t row) const;
  std::optional<std::size_t> find_file(std::string_view name) const;  ///< by binary search

  /// Slabs on a device; 0 for an entry in host memory.
  std::size_t slab_count() const;
  std::uint64_t slab_nbytes(std::size_t slab) const;  ///< 0 where there is none such
  /// Whether the bytes of a file are on a device, in slabs: then there is no image of it in host memory.
  bool on_device(const File& file) const;

  std::size_t tensor_count() const;
  std::optional<Tensor> tensor(std::size_t row) const;
  std::optional<std::size_t> find_tensor(std::string_view name) const;  ///< by binary search

  std::vector<LeftOut> left_out() const;
  std::uint32_t node_ranks() const;       ///< at least 1
  std::vector<Key::File> others() const;  ///< files of the group's key that other ranks hold
  std::uint64_t nbytes() const;           ///< of all files

 private:
  explicit ManifestView(std::span<const std::byte> bytes) : bytes_(bytes) {}
  std::span<const std::byte> bytes_;
};

}  // namespace wcache

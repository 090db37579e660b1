#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "core/entry_plan.h"
#include "core/fd.h"
#include "core/result.h"
#include "daemon/memory/kernel.h"
#include "daemon/memory/tmpfs.h"

namespace wcache {

enum class MemoryKind {
  tmpfs,  ///< a private tmpfs, its superblock read-only
  memfd,  ///< a sealed memfd per file
};
enum class PageKind { huge, small };

std::string_view to_string(MemoryKind kind);  ///< "tmpfs", "memfd"
std::string_view to_string(PageKind pages);   ///< "huge", "small": the `pages` of status

/// An entry's memory after seal(): nobody can change a byte of it. Every descriptor is open for reading only.
struct SealedArena {
  std::vector<Fd> images;  ///< in the plan's order; empty for what is not here (ArenaOptions::weights)
  Fd manifest;
  MemoryKind kind = MemoryKind::tmpfs;
  PageKind pages = PageKind::small;  ///< huge: most bytes of the weights were mapped by 2 MiB entries
  std::string note;                  ///< why it is no tmpfs; empty when it is
};

struct ArenaOptions {
  bool memfd = false;   ///< use memfds even where a private tmpfs is possible
  bool weights = true;  ///< false: they lie on a device, and their spans and descriptors here are empty
  std::string shmem_enabled = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
};

/// The most bytes the manifest of `plan` can take.
std::uint64_t manifest_bound(const EntryPlan& plan);

/// What an Arena for `plan` takes at most, in whole pages: images, with or without the weights, and manifest.
std::uint64_t arena_nbytes(const EntryPlan& plan, bool weights = true);

/// The host memory of one entry while it is filled: a file per image, and the manifest, allocated ahead and
/// mapped writable. Weights lie in a private tmpfs of 2 MiB pages, everything else in another of small pages;
/// where the rights or the kernel for that are missing, in memfds. Dropping an unsealed Arena frees its
/// memory. Move-only; different images may be written by different threads.
class Arena {
 public:
  /// Allocates every byte. `kernel` is borrowed and must outlive the Arena. Reason::over_budget when the
  /// memory is not to be had; when `stop` is requested, Reason::timeout.
  static Result<Arena> create(const EntryPlan& plan, const MemoryKernel& kernel,
                              const ArenaOptions& options = {}, std::stop_token stop = {});

  /// The writable bytes of each image, in the plan's order: page-aligned and whole pages long, so longer than
  /// the file by less than a page. The bytes beyond the file's end must be zero before seal(). Valid until
  /// seal().
  std::vector<std::span<std::byte>> images() const;

  /// Writes the manifest, at most manifest_bound() bytes, once.
  Status add_manifest(std::span<const std::byte> bytes);

  /// Makes everything read-only and gives it out; the Arena is used up. All I/O into images() must have
  /// ended, and no io_uring may still hold a registered buffer there. On an error nothing of it is published
  /// and the memory is freed.
  Result<SealedArena> seal() &&;

  MemoryKind kind() const { return others_ ? MemoryKind::tmpfs : MemoryKind::memfd; }

 private:
  struct File {
    std::string name;
    std::uint64_t nbytes = 0;
    bool weights = false;
    Fd fd;
    Mapping mapping;
  };

  explicit Arena(const MemoryKernel& kernel) : kernel_(&kernel) {}
  Status make_file_systems(const EntryPlan& plan, bool weights);
  Status add_file(File& file, std::uint64_t nbytes, const ArenaOptions& options, const std::stop_token& stop);
  Status allocate(const File& file, const ArenaOptions& options, const std::stop_token& stop);
  PageKind measure_pages() const;
  Result<Fd> close_writable(File& file);

  const MemoryKernel* kernel_;
  std::optional<PrivateTmpfs> weights_;
  std::optional<PrivateTmpfs> others_;
  std::vector<File> images_;
  File manifest_;
  std::string note_;
};

}  // namespace wcache

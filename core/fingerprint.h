#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <stop_token>
#include <string_view>
#include <vector>

#include "core/digest_cache.h"
#include "core/entry_plan.h"
#include "core/key.h"
#include "core/manifest.h"

namespace wcache {

/// How a file's digest was had.
enum class How { read, remembered };
std::string_view to_string(How how);  ///< "read", "remembered"

/// An entry's key, with how each of key.files was had (same order).
struct ResolvedKey {
  Key key;
  std::vector<How> how;
};

struct ResolveOptions {
  /// On the caller's thread, about ten times a second while reading and once at its end. Bytes of the images
  /// that are not remembered.
  std::function<void(std::uint64_t done, std::uint64_t total)> progress;
  std::stop_token stop;
  unsigned threads = 2;
  /// Nanoseconds since the epoch; empty: the system's clock.
  std::function<std::int64_t()> now;
};

/// The key of an entry whose one rank holds `plan`: from the cache where the digests of its images are
/// remembered, else by reading them (buffered, at most 8 MiB a thread), which the cache then remembers.
/// Errors: stale naming file and offset (a source is not, or no longer while it is read, what the plan says),
/// denied, io, and io with errnum ECANCELED when stopped.
Result<ResolvedKey> resolve_key(const EntryPlan& plan, DigestCache& cache,
                                const ResolveOptions& options = {});

/// The same without reading a byte: nothing when an image is not remembered or a source is not what the plan
/// says.
std::optional<Key> remembered_key(const EntryPlan& plan, DigestCache& cache);

/// For who has read and hashed the images otherwise: remembers `digests` (in the order of plan.images).
/// `began_ns` is the system's time before the first byte was read. A digest is remembered only when mtime and
/// ctime of all sources of the image were more than 2 s older than that, the sources are still what the plan
/// says, and their file system keeps a ctime of its own.
void remember_digests(const EntryPlan& plan, std::span<const ImageDigests> digests, DigestCache& cache,
                      std::int64_t began_ns);

/// The system's time, as `began_ns` above.
std::int64_t system_now_ns();

}  // namespace wcache

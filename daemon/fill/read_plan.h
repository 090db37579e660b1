#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/entry_plan.h"
#include "core/result.h"

namespace wcache {

/// Images in host memory are filled in chunks that begin at multiples of this: no read and no landing crosses
/// such a boundary. The most bytes of a landing, and (but for its edges) of a read, anywhere.
inline constexpr std::uint64_t kChunk = std::uint64_t{2} << 20;

/// A source that wants its reads aligned to more is read through the page cache.
inline constexpr std::uint64_t kMaxAlignment = std::uint64_t{64} << 10;

/// The most bytes of a read that does not go straight into an image.
inline constexpr std::uint64_t kBounceNbytes = kChunk + 2 * kMaxAlignment;

/// Where a run of the bytes of a read belongs.
struct Landing {
  std::uint32_t image = 0;
  std::uint64_t image_offset = 0;
  std::uint64_t nbytes = 0;
  std::uint64_t from = 0;  ///< in what was read
};

/// One read of a source. A direct one goes straight into the image, at its only landing, whose `from` is 0;
/// any other one goes into a buffer of kBounceNbytes, and its landings are copied from there.
struct PlannedRead {
  std::uint32_t source = 0;
  bool direct = false;
  std::uint32_t first_landing = 0;  ///< in ReadPlan::landings
  std::uint32_t landings = 0;
  std::uint64_t offset = 0;  ///< in the source; a multiple of its alignment
  std::uint64_t nbytes =
      0;  ///< likewise; may pass the end of the source, and (direct) the image's within its last page
  std::uint64_t needed = 0;  ///< how many of them must come
};

/// Every read of a fill, in order of source and offset.
struct ReadPlan {
  std::vector<PlannedRead> reads;
  std::vector<Landing> landings;

  std::uint64_t read_nbytes() const;  ///< of all reads, the excess at their edges included
};

/// Cuts the pieces of `plan` into reads. Where image and source agree modulo the source's alignment a read
/// goes straight into the image; ragged edges and tensors that were moved by an odd distance go through a
/// buffer, neighbours in the source together. `alignments`: of each source of the plan (1 to kMaxAlignment,
/// powers of two). Reason::internal for a plan whose pieces and head do not cover its images exactly or that
/// reaches beyond a source.
Result<ReadPlan> plan_reads(const EntryPlan& plan, std::span<const std::uint64_t> alignments);

/// The same for memory that no read can go into: every read goes into a buffer of kBounceNbytes, and every
/// landing is made of whole hash blocks, so that what has come can be hashed from there. Reason::internal as
/// well for a plan in which a segment lies across the boundary of a piece.
Result<ReadPlan> plan_staged_reads(const EntryPlan& plan, std::span<const std::uint64_t> alignments);

}  // namespace wcache

#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stop_token>
#include <vector>

#include "core/entry_plan.h"
#include "core/manifest.h"
#include "core/result.h"
#include "daemon/fill/read_plan.h"

namespace wcache {

/// The edge between the fill and the memory that it fills: reading, its retries, its stalls and its end are
/// the fill's own; where a read goes to and what becomes of its bytes is the sink's.

/// One worker's way into the memory. Made and destroyed by the thread that fills, used by one other in
/// between. Destroyed at any time it waits, within a bound, for what is pending, and holds nothing any more.
class FillLane {
 public:
  virtual ~FillLane() = default;

  /// Memory for `read.nbytes` bytes at an address fit for every alignment. nullptr: none now, but when a read
  /// has landed or something pending has passed.
  virtual Result<std::byte*> take(const PlannedRead& read) = 0;

  /// The read has come, into what `take` gave for it; that goes back to the lane. Hashes the bytes. Returns
  /// how many bytes of the images are in place by now that were not told before.
  virtual Result<std::uint64_t> land(const PlannedRead& read, std::byte* bytes) = 0;

  /// Whether bytes that have landed are still on their way.
  virtual bool pending() const = 0;

  /// Waits until something pending has passed, or for `wait` (0: only looks). Returns as `land` does.
  virtual Result<std::uint64_t> settle(std::chrono::milliseconds wait) = 0;

  /// The last call of a fill that went well: nothing is pending. An error that came with anything before, and
  /// one in giving back what the lane holds, is told now at the latest.
  virtual Status finish() = 0;

  /// The read into `bytes` (of `take`) never ended: they are never used again, nor freed.
  virtual void forsake(std::byte* bytes) = 0;
};

/// The memory of a plan's images, and the hashing of what comes. Borrows its plan.
class FillSink {
 public:
  virtual ~FillSink() = default;

  virtual const EntryPlan& plan() const = 0;

  /// How the pieces of the plan are to be read (`plan_reads`, `plan_staged_reads`).
  virtual Result<ReadPlan> plan_reads(std::span<const std::uint64_t> alignments) const = 0;

  /// Puts the literal bytes of the images in place; returns how many there are. Called once, before any lane
  /// is made. `timeout` when it is stopped, or when one image's do not arrive within `stall_timeout`.
  virtual Result<std::uint64_t> place_heads(std::chrono::milliseconds stall_timeout,
                                            const std::stop_token& stop) = 0;

  /// A lane through which `depth` reads are in flight at most. Borrows the sink and `reads`.
  virtual Result<std::unique_ptr<FillLane>> make_lane(const ReadPlan& reads, unsigned depth) = 0;

  /// When every byte is in place: digests in the plan's order.
  virtual std::vector<ImageDigests> digests() const = 0;
};

}  // namespace wcache

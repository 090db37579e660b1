#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "core/entry_plan.h"
#include "core/manifest.h"
#include "core/result.h"
#include "daemon/fill/disk.h"
#include "daemon/fill/sink.h"

namespace wcache {

/// The way the bytes came: `fill_path` of status. Where several were taken, the one least wanted.
enum class FillPath { io_uring_direct, io_uring_buffered, threads };
std::string_view to_string(FillPath path);  ///< "io_uring-direct", "io_uring-buffered", "threads"

struct FillProgress {
  std::uint64_t filled = 0;  ///< bytes in place, of `total`
  std::uint64_t total = 0;
  double rate = 0;  ///< bytes a second, over the last two seconds
};

struct FillOptions {
  unsigned depth = 32;   ///< reads in flight, of kChunk each at most, over all files
  unsigned workers = 0;  ///< threads that submit, reap and hash; 0: by processors and kind of disk
  std::chrono::milliseconds stall_timeout{
      60'000};                                     ///< a fill in which nothing arrives for so long has failed
  std::chrono::milliseconds drain_timeout{5'000};  ///< how long an ending fill waits for reads in flight
  std::chrono::milliseconds progress_interval{250};
  std::string
      note;  ///< why the disk is not the preferred one (MachineDisk::note); becomes part of the report's

  /// Of each image, in the plan's order, the digest that was remembered for its source; empty: none
  /// remembered at all.
  std::vector<std::optional<Digest>> remembered;
};

/// What a fill with these options has at most, on any machine.
struct FillBounds {
  unsigned workers = 0;
  unsigned reads = 0;  ///< in flight, of all workers together
};
FillBounds bounds_of(const FillOptions& options);

struct FillReport {
  std::vector<ImageDigests> digests;  ///< in the plan's order
  FillPath path = FillPath::io_uring_direct;
  std::string note;  ///< why it was not io_uring-direct; empty when it was
  double seconds = 0;
  std::uint64_t nbytes = 0;       ///< of the images
  std::uint64_t read_nbytes = 0;  ///< asked of the disk, excess at ragged edges included
};

/// Called on the thread that called fill(): at the start, then once an interval, then at the end.
using ProgressCallback = std::function<void(const FillProgress&)>;

/// Reads every image of the sink's plan into its memory and hashes it on the way. Each source is checked to
/// be what the plan saw, before and after. On return no read is in flight, no ring is open, and neither
/// kernel nor driver holds anything for the fill.
///
/// Errors name file, offset and cause. stale: a source changed, or is not what was remembered; io, denied,
/// not_found: it could not be read; timeout: stopped through `stop`, or nothing arrived for stall_timeout; or
/// what the sink says. What the images hold is then undefined. After a stall reads may never end: the memory
/// must then be given up, not used for anything else.
Result<FillReport> fill(FillSink& sink, Disk& disk, const FillOptions& options = {},
                        const ProgressCallback& progress = {}, std::stop_token stop = {});

/// Into host memory: `images` are Arena::images(), page-aligned, whole pages, zero where nothing is written.
Result<FillReport> fill(const EntryPlan& plan, std::span<const std::span<std::byte>> images, Disk& disk,
                        const FillOptions& options = {}, const ProgressCallback& progress = {},
                        std::stop_token stop = {});

}  // namespace wcache

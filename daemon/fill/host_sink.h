#pragma once

#include <memory>
#include <span>
#include <vector>

#include "daemon/fill/block_hasher.h"
#include "daemon/fill/sink.h"

namespace wcache {

/// Fills host memory: a read goes straight to its place in an image where alignment allows it, through a
/// small buffer where not. Nothing is ever pending.
class HostSink : public FillSink {
 public:
  /// Borrows `plan` and `images`: one span an image, page-aligned and whole pages long. Reason::internal for
  /// a plan whose segments do not cover its images.
  static Result<std::unique_ptr<HostSink>> create(const EntryPlan& plan,
                                                  std::span<const std::span<std::byte>> images);

  const EntryPlan& plan() const override { return plan_; }
  Result<ReadPlan> plan_reads(std::span<const std::uint64_t> alignments) const override;
  Result<std::uint64_t> place_heads(std::chrono::milliseconds stall_timeout,
                                    const std::stop_token& stop) override;
  Result<std::unique_ptr<FillLane>> make_lane(const ReadPlan& reads, unsigned depth) override;
  std::vector<ImageDigests> digests() const override { return hasher_.finish(); }

 private:
  class Lane;

  HostSink(const EntryPlan& plan, std::span<const std::span<std::byte>> images, BlockHasher hasher)
      : plan_(plan), images_(images), hasher_(std::move(hasher)) {}

  const EntryPlan& plan_;
  std::span<const std::span<std::byte>> images_;
  BlockHasher hasher_;
};

}  // namespace wcache

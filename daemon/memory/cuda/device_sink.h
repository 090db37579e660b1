#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <stop_token>
#include <vector>

#include "core/image_hash.h"
#include "core/slab_plan.h"
#include "daemon/fill/sink.h"
#include "daemon/memory/cuda/context.h"
#include "daemon/memory/cuda/driver.h"

namespace wcache {

/// Where on the device a plan's images go.
struct DevicePlaces {
  std::vector<std::vector<SlabPlace>> images;  ///< of each image of the plan, one place a segment
  std::vector<CUdeviceptr> slabs;              ///< where each slab is mapped
};

/// Fills slabs on a device: reads go into a ring of pinned host buffers of each lane, from there by copies of
/// the driver's to their places, and are hashed meanwhile. A buffer is used again when the event behind its
/// copies has passed. Borrows plan and context.
class DeviceSink : public FillSink {
 public:
  /// Buffers of a lane beyond those of its reads in flight: their copies are under way.
  static constexpr unsigned kSpareBuffers = 2;

  /// `buffers`: of each lane; 0: kSpareBuffers more than it has reads in flight.
  DeviceSink(const EntryPlan& plan, DevicePlaces places, const CudaContext& context, unsigned buffers);

  const EntryPlan& plan() const override { return plan_; }
  Result<ReadPlan> plan_reads(std::span<const std::uint64_t> alignments) const override;
  Result<std::uint64_t> place_heads(std::chrono::milliseconds stall_timeout,
                                    const std::stop_token& stop) override;
  Result<std::unique_ptr<FillLane>> make_lane(const ReadPlan& reads, unsigned depth) override;
  std::vector<ImageDigests> digests() const override;

  /// Whether the device has not ended its copies by the end of their lane: whatever they use, and the context
  /// with it, must stay as it is until the process ends.
  bool hung() const { return hung_; }

 private:
  class Lane;

  Status place_head(std::uint32_t image, std::span<const std::byte> head,
                    std::chrono::milliseconds stall_timeout, const std::stop_token& stop);
  Status copy(const Landing& landing, const std::byte* bytes, CUstream stream) const;
  void hash(const Landing& landing, const std::byte* bytes);

  const EntryPlan& plan_;
  DevicePlaces places_;
  const CudaContext& context_;
  const CudaDriver& driver_;
  unsigned buffers_;
  std::vector<ImageHash> hashes_;
  bool hung_ = false;  // one stream has been waited for in vain; the next need not be
};

}  // namespace wcache

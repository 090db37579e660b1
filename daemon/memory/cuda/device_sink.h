#pragma once

#include <cstdint>
#include <memory>
#include <span>
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
  Result<std::uint64_t> place_heads() override;
  Result<std::unique_ptr<FillLane>> make_lane(const ReadPlan& reads, unsigned depth) override;
  std::vector<ImageDigests> digests() const override;

 private:
  class Lane;

  Status place_head(std::uint32_t image, std::span<const std::byte> head);
  Status copy(const Landing& landing, const std::byte* bytes, CUstream stream) const;
  void hash(const Landing& landing, const std::byte* bytes);

  const EntryPlan& plan_;
  DevicePlaces places_;
  const CudaContext& context_;
  const CudaDriver& driver_;
  unsigned buffers_;
  std::vector<ImageHash> hashes_;
  bool hung_ = false;  // one lane has waited in vain for its copies; the next need not
};

}  // namespace wcache

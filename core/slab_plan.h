#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/entry_plan.h"
#include "core/result.h"

namespace wcache {

/// What lies in a slab begins at a multiple of this.
inline constexpr std::uint64_t kSlabAlignment = 256;

/// How plan_slabs is called for a device: few slabs are attached soon, and an allocation may be as large as
/// its device.
inline constexpr std::uint64_t kSlabNbytes = std::uint64_t{8} << 30;
inline constexpr std::size_t kMostSlabs = 8;

/// Where a segment lies on a device.
struct SlabPlace {
  std::uint32_t slab = 0;
  std::uint64_t offset = 0;  ///< in the slab
  bool operator==(const SlabPlace&) const = default;
};

/// How the weight images of an entry lie on a device: not as files, but each segment (tensor, header, gap) at
/// an aligned place of one of a few large allocations. Files that are no weights stay in host memory.
struct SlabPlan {
  std::vector<std::uint64_t> slabs;  ///< bytes of each; multiples of the granularity
  /// Of each image of the plan, one place a segment; empty for an image that stays in host memory.
  std::vector<std::vector<SlabPlace>> images;

  std::uint64_t nbytes() const;  ///< of all slabs
};

/// Packs the segments of the weight images in order. A slab is closed when the next segment would take it
/// past `slab_nbytes`; a larger segment has a slab of its own. Where that would give more than `most` slabs
/// they are made larger. `granularity`: a power of two, at least kSlabAlignment. Reason::unsupported for
/// weights that are no safetensors.
Result<SlabPlan> plan_slabs(const EntryPlan& plan, std::uint64_t granularity, std::uint64_t slab_nbytes,
                            std::size_t most);

/// A run of an image's bytes that is one in a slab too.
struct SlabPart {
  SlabPlace place;
  std::uint64_t image_offset = 0;
  std::uint64_t nbytes = 0;
};

/// Where the bytes [offset, offset + nbytes) of an image lie, in their order: `segments` are the image's, of
/// which `places` has one each. Nothing for what lies beyond it.
std::vector<SlabPart> slab_parts(std::span<const Segment> segments, std::span<const SlabPlace> places,
                                 std::uint64_t offset, std::uint64_t nbytes);

}  // namespace wcache

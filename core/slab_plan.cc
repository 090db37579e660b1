#include "core/slab_plan.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace wcache {
namespace {

std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

SlabPlan pack(const EntryPlan& plan, std::uint64_t granularity, std::uint64_t slab_nbytes) {
  SlabPlan out;
  std::uint64_t used = 0;  // of the open slab
  bool open = false;
  const auto close = [&] {
    if (open) out.slabs.push_back(round_up(used, granularity));
    open = false;
    used = 0;
  };
  for (const ImagePlan& image : plan.images) {
    std::vector<SlabPlace>& places = out.images.emplace_back();
    if (!is_weights(image.kind)) continue;
    for (const Segment& segment : image.segments) {
      std::uint64_t begin = round_up(used, kSlabAlignment);
      if (open && (begin > slab_nbytes || segment.nbytes > slab_nbytes - begin)) {
        close();
        begin = 0;
      }
      open = true;
      places.push_back({static_cast<std::uint32_t>(out.slabs.size()), begin});
      used = begin + segment.nbytes;
    }
  }
  close();
  return out;
}

}  // namespace

std::uint64_t SlabPlan::nbytes() const {
  return std::accumulate(slabs.begin(), slabs.end(), std::uint64_t{0});
}

Result<SlabPlan> plan_slabs(const EntryPlan& plan, std::uint64_t granularity, std::uint64_t slab_nbytes,
                            std::size_t most) {
  for (const ImagePlan& image : plan.images)
    if (is_weights(image.kind) && image.kind != FileKind::safetensors)
      return fail(Reason::unsupported, image.name + " is no safetensors file: only those can be held on a GPU",
                  "use --device host", "--device");
  for (;; slab_nbytes *= 2) {
    SlabPlan packed = pack(plan, granularity, slab_nbytes);
    if (packed.slabs.size() <= most) return packed;
  }
}

std::vector<SlabPart> slab_parts(std::span<const Segment> segments, std::span<const SlabPlace> places,
                                 std::uint64_t offset, std::uint64_t nbytes) {
  std::vector<SlabPart> parts;
  const auto after = std::ranges::upper_bound(segments, offset, {}, &Segment::offset);
  auto index = static_cast<std::size_t>(std::max<std::ptrdiff_t>(after - segments.begin() - 1, 0));
  for (; nbytes > 0 && index < segments.size() && index < places.size(); ++index) {
    const Segment& segment = segments[index];
    const std::uint64_t within = offset - segment.offset;
    if (within >= segment.nbytes) break;
    const std::uint64_t size = std::min(nbytes, segment.nbytes - within);
    parts.push_back({{places[index].slab, places[index].offset + within}, offset, size});
    offset += size;
    nbytes -= size;
  }
  return parts;
}

}  // namespace wcache

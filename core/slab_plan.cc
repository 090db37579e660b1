#include "core/slab_plan.h"

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

}  // namespace wcache

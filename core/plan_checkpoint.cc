#include <utility>

#include "core/entry_plan.h"

namespace wcache {

EntryPlan plan_checkpoint(Checkpoint checkpoint, Role role) {
  EntryPlan plan;
  plan.role = role;
  plan.layout = Layout::checkpoint;
  plan.name = std::move(checkpoint.name);
  plan.source = checkpoint.root.string();
  plan.architecture = std::move(checkpoint.architecture);
  plan.dtype = std::move(checkpoint.dtype);
  plan.quantization = std::move(checkpoint.quantization);
  plan.left_out = std::move(checkpoint.left_out);
  plan.sources = std::move(checkpoint.files);
  for (std::uint32_t i = 0; i < plan.sources.size(); ++i) {
    SourceFile& file = plan.sources[i];
    ImagePlan image;
    image.name = file.name;
    image.kind = file.kind;
    image.nbytes = file.identity.nbytes;
    image.mtime_ns = file.identity.mtime_ns;
    if (image.nbytes > 0) image.pieces.push_back({0, i, 0, image.nbytes});
    image.segments = segments_of(image.nbytes, file.tensors);
    image.tensors = std::exchange(file.tensors, {});
    std::erase_if(image.tensors, [](const TensorInfo& tensor) { return tensor.shadowed; });
    plan.images.push_back(std::move(image));
  }
  return plan;
}

}  // namespace wcache

#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/manifest.h"

namespace wcache::testing {

/// A plan whose images are all head: nothing on disk is needed, and the bytes are at hand.
inline ImagePlan sample_image(std::string name, FileKind kind, std::string bytes,
                              std::vector<TensorInfo> tensors = {}, std::vector<Segment> segments = {}) {
  ImagePlan image;
  image.name = std::move(name);
  image.kind = kind;
  image.nbytes = bytes.size();
  image.mtime_ns = 1'700'000'000'123'456'789;
  image.head = std::move(bytes);
  image.tensors = std::move(tensors);
  image.segments = std::move(segments);
  if (image.segments.empty() && image.nbytes > 0) image.segments = {{0, image.nbytes}};
  return image;
}

/// Two weight files of three tensors (one empty, one scalar), a sub-directory, an empty file, and left-out
/// files.
inline EntryPlan sample_plan() {
  EntryPlan plan;
  plan.role = Role::target;
  plan.layout = Layout::checkpoint;
  plan.name = "tiny";
  plan.source = "/models/tiny";
  plan.architecture = "TinyForCausalLM";
  plan.dtype = "bfloat16";
  plan.quantization = "fp8";
  plan.images.push_back(sample_image("config.json", FileKind::other, "{\"model_type\": \"tiny\"}"));
  plan.images.push_back(sample_image("empty.txt", FileKind::other, ""));
  plan.images.push_back(sample_image("model-00001.safetensors", FileKind::safetensors, "HEADER00aaaabbbbbbbb",
                                     {{"z.weight", "BF16", {1, 2}, 8, 4}, {"b.weight", "F32", {2}, 12, 8}},
                                     {{0, 8}, {8, 4}, {12, 8}}));
  plan.images.push_back(sample_image("model-00002.safetensors", FileKind::safetensors, "HEADER11cc",
                                     {{"a.nothing", "BF16", {0, 7}, 8, 0}, {"m.scalar", "BF16", {}, 8, 2}},
                                     {{0, 8}, {8, 2}}));
  plan.images.push_back(sample_image("sub/code.py", FileKind::other, "pass\n"));
  plan.left_out = {{"pytorch_model.bin", "safetensors are present"}, {"x\"\\\n\xff", "not UTF-8"}};
  return plan;
}

/// The digests of a plan whose images are all head.
inline std::vector<ImageDigests> digests_of_heads(const EntryPlan& plan) {
  std::vector<ImageDigests> out;
  for (const ImagePlan& image : plan.images) {
    const auto bytes = std::as_bytes(std::span(image.head.data(), image.head.size()));
    ImageDigests digests;
    for (const Segment& segment : image.segments)
      digests.segments.push_back(segment_digest(bytes.subspan(segment.offset, segment.nbytes)));
    digests.file = combine_segments(image.segments, digests.segments);
    out.push_back(std::move(digests));
  }
  return out;
}

}  // namespace wcache::testing

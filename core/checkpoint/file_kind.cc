#include "core/checkpoint/file_kind.h"

#include <algorithm>
#include <array>
#include <string>

namespace wcache {
namespace {

constexpr std::array<std::string_view, 3> kTorch{".bin", ".pt", ".pth"};
constexpr std::array<std::string_view, 9> kOtherWeights{
    ".ckpt", ".h5", ".msgpack", ".onnx", ".onnx_data", ".nemo", ".pdparams", ".ot", ".tflite"};

bool has_suffix(std::string_view name, std::string_view suffix) {
  return name.size() > suffix.size() && name.ends_with(suffix) &&
         name[name.size() - suffix.size() - 1] != '/';
}

}  // namespace

bool is_torch_file(std::string_view name) {
  return std::any_of(kTorch.begin(), kTorch.end(),
                     [&](std::string_view suffix) { return has_suffix(name, suffix); });
}

FileKind kind_of_name(std::string_view name) {
  if (has_suffix(name, ".safetensors")) return FileKind::safetensors;
  if (has_suffix(name, ".gguf")) return FileKind::gguf;
  const bool opaque =
      is_torch_file(name) || std::any_of(kOtherWeights.begin(), kOtherWeights.end(),
                                         [&](std::string_view suffix) { return has_suffix(name, suffix); });
  return opaque ? FileKind::opaque : FileKind::other;
}

std::string known_weight_suffixes() {
  std::string out = ".safetensors, .gguf";
  for (const std::string_view suffix : kTorch) out.append(", ").append(suffix);
  for (const std::string_view suffix : kOtherWeights) out.append(", ").append(suffix);
  return out;
}

}  // namespace wcache

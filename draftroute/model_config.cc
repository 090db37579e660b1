#include "draftroute/model_config.h"

#include <fstream>

namespace wcache::draftroute {
namespace {

using nlohmann::json;

constexpr std::uintmax_t kMaxConfigBytes = 16u << 20;

const json* find(const json& root, std::string_view dotted) {
  const json* at = &root;
  while (true) {
    const std::size_t dot = dotted.find('.');
    if (!at->is_object()) return nullptr;
    const auto found = at->find(std::string(dotted.substr(0, dot)));
    if (found == at->end()) return nullptr;
    at = &*found;
    if (dot == std::string_view::npos) return at;
    dotted.remove_prefix(dot + 1);
  }
}

std::optional<std::uint32_t> layers_of(const ModelConfig& config, const MtpFamily& family) {
  for (std::string_view key : family.layer_keys)
    if (const auto count = config.count(key)) return count;
  if (family.layers_else > 0) return family.layers_else;
  return std::nullopt;
}

}  // namespace

Result<ModelConfig> ModelConfig::read(const std::filesystem::path& directory, std::string_view key) {
  const std::filesystem::path path = directory / "config.json";
  std::error_code code;
  const std::uintmax_t nbytes = std::filesystem::file_size(path, code);
  if (code)
    return fail(
        Reason::invalid, "'" + directory.string() + "' has no config.json: " + code.message(),
        "give a local model directory; a hub id is not looked up: download it first and pass its snapshot "
        "directory",
        std::string(key));
  if (nbytes > kMaxConfigBytes)
    return fail(Reason::invalid, path.string() + " is larger than 16 MiB: no model configuration", {},
                std::string(key));
  std::ifstream in(path, std::ios::binary);
  json parsed = json::parse(in, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object())
    return fail(Reason::invalid, path.string() + " is not a JSON object", {}, std::string(key));
  return ModelConfig(std::move(parsed));
}

std::string ModelConfig::text(std::string_view key) const {
  const json* value = find(json_, key);
  return value != nullptr && value->is_string() ? value->get<std::string>() : std::string();
}

std::string ModelConfig::architecture() const {
  const json* list = find(json_, "architectures");
  if (list == nullptr || !list->is_array() || list->empty() || !list->front().is_string()) return {};
  return list->front().get<std::string>();
}

std::optional<std::uint32_t> ModelConfig::count(std::string_view dotted) const {
  const json* value = find(json_, dotted);
  if (value == nullptr || !value->is_number_integer()) return std::nullopt;
  if (value->is_number_unsigned() ? value->get<std::uint64_t>() > UINT32_MAX : value->get<std::int64_t>() < 0)
    return std::nullopt;
  return value->get<std::uint32_t>();
}

std::uint32_t ModelConfig::num_hidden_layers() const {
  for (std::string_view key : {"num_hidden_layers", "text_config.num_hidden_layers"})
    if (const auto count_found = count(key)) return *count_found;
  return 0;
}

DraftView draft_view(const ModelConfig& config) {
  DraftView view;
  view.model_type = config.model_type();
  view.architecture = config.architecture();
  const MtpFamily* family = find_family({view.model_type, view.architecture});
  if (family == nullptr) family = family_of_draft_type(view.model_type);
  if (family == nullptr) return view;
  const std::optional<std::uint32_t> layers = layers_of(config, *family);
  if (family->needs_positive_key) {
    bool positive = false;
    for (std::string_view key : family->layer_keys) positive |= config.count(key).value_or(0) > 0;
    if (!positive) return view;
  }
  view.family = family;
  view.layers = layers;
  view.model_type = family->draft_model_type;
  if (!family->draft_architecture.empty()) view.architecture = family->draft_architecture;
  return view;
}

}  // namespace wcache::draftroute

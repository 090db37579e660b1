#include "core/checkpoint/config.h"

#include <array>
#include <nlohmann/json.hpp>

#include "core/format.h"

namespace wcache {
namespace {

using nlohmann::json;

/// Replaces the numbers that only Python's json knows by null; strings are left alone.
std::string without_python_numbers(std::string_view text) {
  constexpr std::array<std::string_view, 3> kWords{"-Infinity", "Infinity", "NaN"};
  std::string out;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (in_string && text[i] == '\\' && i + 1 < text.size()) {
      out += text.substr(i++, 2);
      continue;
    }
    if (text[i] == '"') in_string = !in_string;
    std::string_view word;
    for (const std::string_view candidate : kWords)
      if (!in_string && text.substr(i).starts_with(candidate)) word = candidate;
    if (word.empty()) {
      out += text[i];
    } else {
      out += "null";
      i += word.size() - 1;
    }
  }
  return out;
}

json parse(std::string_view text) {
  return json::parse(text, nullptr, /*allow_exceptions=*/false);
}

/// The string at object[key], or empty.
std::string string_at(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

const json& object_at(const json& object, const char* key) {
  static const json kNone = json::object();
  const auto found = object.find(key);
  return found != object.end() && found->is_object() ? *found : kNone;
}

std::string first_architecture(const json& config) {
  const auto found = config.find("architectures");
  if (found == config.end() || !found->is_array() || found->empty() || !found->front().is_string()) return {};
  return found->front().get<std::string>();
}

std::string dtype_of(const json& config) {
  std::string dtype = string_at(config, "dtype");
  if (dtype.empty()) dtype = string_at(config, "torch_dtype");
  return dtype.starts_with("torch.") ? dtype.substr(6) : dtype;
}

std::string quantization_of(const json& config) {
  return string_at(object_at(config, "quantization_config"), "quant_method");
}

}  // namespace

Result<ModelConfig> parse_model_config(std::string_view text, std::string_view name) {
  json config = parse(text);
  if (config.is_discarded()) config = parse(without_python_numbers(text));
  if (!config.is_object()) {
    return fail(Reason::corrupt,
                printable(name) + ": " + (config.is_discarded() ? "not JSON" : "not a JSON object"),
                "no engine can read it: download it again");
  }
  const json& nested = object_at(config, "text_config");
  const auto either = [&](auto&& of) {
    std::string top = of(config);
    return top.empty() ? of(nested) : top;
  };
  return ModelConfig{either(first_architecture), either(dtype_of), either(quantization_of)};
}

}  // namespace wcache

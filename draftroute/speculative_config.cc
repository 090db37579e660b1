#include "draftroute/speculative_config.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>

#include "draftroute/families.h"

namespace wcache::draftroute {
namespace {

using nlohmann::json;

enum class Type { string, positive, count, boolean, number, list, load_config, any, trap };

struct KeyRow {
  std::string_view key;
  Type type;
};

// vLLM 0.32, config/speculative.py. A null value is as good as an absent key everywhere.
constexpr std::array kKeys{
    KeyRow{"method", Type::string},
    KeyRow{"model", Type::string},
    KeyRow{"num_speculative_tokens", Type::positive},
    KeyRow{"draft_tensor_parallel_size", Type::positive},
    KeyRow{"tensor_parallel_size", Type::trap},
    KeyRow{"quantization", Type::string},
    KeyRow{"revision", Type::string},
    KeyRow{"code_revision", Type::string},
    KeyRow{"draft_load_config", Type::load_config},
    KeyRow{"moe_backend", Type::string},
    KeyRow{"attention_backend", Type::string},
    KeyRow{"kv_cache_dtype", Type::string},
    KeyRow{"max_model_len", Type::positive},
    KeyRow{"enforce_eager", Type::boolean},
    KeyRow{"use_heterogeneous_vocab", Type::boolean},
    KeyRow{"parallel_drafting", Type::boolean},
    KeyRow{"disable_padded_drafter_batch", Type::boolean},
    KeyRow{"disable_eagle_block_drop", Type::boolean},
    KeyRow{"use_local_argmax_reduction", Type::boolean},
    KeyRow{"index_share_for_mtp_iteration", Type::boolean},
    KeyRow{"prompt_lookup_max", Type::positive},
    KeyRow{"prompt_lookup_min", Type::positive},
    KeyRow{"num_speculative_tokens_per_batch_size", Type::list},
    KeyRow{"suffix_decoding_max_tree_depth", Type::count},
    KeyRow{"suffix_decoding_max_cached_requests", Type::count},
    KeyRow{"suffix_decoding_max_spec_factor", Type::number},
    KeyRow{"suffix_decoding_min_token_prob", Type::number},
    KeyRow{"rejection_sample_method", Type::string},
    KeyRow{"synthetic_acceptance_rates", Type::list},
    KeyRow{"synthetic_acceptance_length", Type::number},
    KeyRow{"draft_sample_method", Type::string},
    KeyRow{"enable_adaptive_verification", Type::boolean},
    KeyRow{"dspark_draft_topk", Type::positive},
};

constexpr std::array kMethods{
    std::string_view("mtp"),
    std::string_view("eagle"),
    std::string_view("eagle3"),
    std::string_view("dflash"),
    std::string_view("dspark"),
    std::string_view("draft_model"),
    std::string_view("medusa"),
    std::string_view("mlp_speculator"),
    std::string_view("ngram"),
    std::string_view("[ngram]"),
    std::string_view("ngram_gpu"),
    std::string_view("suffix"),
    std::string_view("extract_hidden_states"),
    std::string_view("custom_class"),
};

tl::unexpected<Error> bad(std::string_view key, std::string message, std::string hint = {}) {
  return fail(Reason::invalid, "speculative config: " + std::move(message), std::move(hint),
              std::string(key));
}

const KeyRow* find_key(std::string_view key) {
  const auto* row = std::find_if(kKeys.begin(), kKeys.end(), [&](const KeyRow& r) { return r.key == key; });
  return row == kKeys.end() ? nullptr : row;
}

/// An integer, or a string that is one ("1"), as vLLM's parser takes both. Whole floating numbers too (1.0).
std::optional<std::int64_t> as_integer(const json& value) {
  if (value.is_number_unsigned() && value.get<std::uint64_t>() > INT64_MAX) return std::nullopt;
  if (value.is_number_integer()) return value.get<std::int64_t>();
  if (value.is_number_float()) {
    const double number = value.get<double>();
    if (number < -9e15 || number > 9e15 || number != static_cast<double>(static_cast<std::int64_t>(number)))
      return std::nullopt;
    return static_cast<std::int64_t>(number);
  }
  if (!value.is_string()) return std::nullopt;
  const std::string& text = value.get_ref<const std::string&>();
  std::int64_t number = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (code != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

Status check_integer(std::string_view key, const json& value, std::int64_t least) {
  const std::optional<std::int64_t> number = as_integer(value);
  if (!number) return bad(key, std::string(key) + " must be an integer, not " + value.dump());
  if (*number < least || *number > UINT32_MAX)
    return bad(key,
               std::string(key) + " must be at least " + std::to_string(least) + ", not " + value.dump());
  return {};
}

Status check_value(const KeyRow& row, const json& value) {
  const std::string key(row.key);
  switch (row.type) {
    case Type::string:
      if (!value.is_string()) return bad(key, key + " must be a string, not " + value.dump());
      return {};
    case Type::positive:
      return check_integer(key, value, 1);
    case Type::count:
      return check_integer(key, value, 0);
    case Type::boolean:
      if (!value.is_boolean()) return bad(key, key + " must be true or false, not " + value.dump());
      return {};
    case Type::number:
      if (!value.is_number()) return bad(key, key + " must be a number, not " + value.dump());
      return {};
    case Type::list:
      if (!value.is_array()) return bad(key, key + " must be a list, not " + value.dump());
      return {};
    case Type::load_config:
      if (!value.is_object()) return bad(key, key + " must be an object, not " + value.dump());
      return {};
    case Type::any:
      return {};
    case Type::trap:
      return bad(key, "'tensor_parallel_size' is not a key of it", "use draft_tensor_parallel_size");
  }
  return {};
}

Result<json> parse_object(std::string_view text) {
  json object = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (object.is_discarded()) return bad("speculative_config", "not JSON: " + std::string(text.substr(0, 80)));
  if (!object.is_object())
    return bad("speculative_config", "must be a JSON object, not " + std::string(object.type_name()),
               "write {\"method\": \"mtp\", \"num_speculative_tokens\": 1}");
  json normalised = json::object();
  for (const auto& [key, value] : object.items()) {
    std::string plain = key;
    std::replace(plain.begin(), plain.end(), '-', '_');
    if (normalised.contains(plain)) return bad(key, "'" + plain + "' is given twice");
    normalised[plain] = value;
  }
  return normalised;
}

Status read_load_config(const json& object, SpeculativeConfig& out) {
  const auto found = object.find("draft_load_config");
  if (found == object.end() || found->is_null()) return {};
  constexpr std::string_view kKey = "draft_load_config";
  out.has_draft_load_config = true;
  out.draft_load_format = "auto";
  if (const auto format = found->find("load_format"); format != found->end() && !format->is_null()) {
    if (!format->is_string()) return bad(kKey, "draft_load_config.load_format must be a string");
    out.draft_load_format = format->get<std::string>();
  }
  if (const auto extra = found->find("model_loader_extra_config");
      extra != found->end() && extra->is_object()) {
    const auto flag = extra->find("is_draft");
    out.draft_load_is_draft = flag != extra->end() && flag->is_boolean() && flag->get<bool>();
  }
  if (out.draft_load_format == "ipc_cache" && !out.draft_load_is_draft)
    return bad(kKey,
               "draft_load_config asks for ipc_cache without is_draft: the draft would be sent to the "
               "target's group",
               "add \"model_loader_extra_config\": {\"is_draft\": true}, or leave draft_load_config out");
  return {};
}

Status read_method(const json& object, SpeculativeConfig& out) {
  const auto found = object.find("method");
  if (found == object.end() || found->is_null()) return {};
  out.method_as_given = found->get<std::string>();
  out.method = is_mtp_alias(out.method_as_given) ? "mtp" : out.method_as_given;
  if (std::find(kMethods.begin(), kMethods.end(), out.method) == kMethods.end())
    return bad("method", "there is no method '" + out.method_as_given + "'",
               "methods are written in lower case: mtp, eagle, eagle3, dflash, dspark, draft_model, medusa, "
               "mlp_speculator, ngram, ngram_gpu, suffix, extract_hidden_states, custom_class");
  if (out.method == "[ngram]") out.method = "ngram";
  return {};
}

std::optional<std::uint32_t> integer_of(const json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return std::nullopt;
  return static_cast<std::uint32_t>(*as_integer(*found));
}

}  // namespace

Result<SpeculativeConfig> parse_speculative_config(std::string_view text, std::uint32_t target_tp) {
  const Result<json> object = parse_object(text);
  if (!object) return tl::unexpected(object.error());
  for (const auto& [key, value] : object->items()) {
    const KeyRow* row = find_key(key);
    if (row == nullptr) return bad(key, "there is no key '" + key + "'");
    if (value.is_null()) continue;
    if (const Status ok = check_value(*row, value); !ok) return tl::unexpected(ok.error());
  }
  SpeculativeConfig out;
  if (const Status ok = read_method(*object, out); !ok) return tl::unexpected(ok.error());
  if (const auto model = object->find("model"); model != object->end() && model->is_string())
    out.model = model->get<std::string>();
  out.num_speculative_tokens = integer_of(*object, "num_speculative_tokens");
  out.draft_tensor_parallel_size = integer_of(*object, "draft_tensor_parallel_size");
  if (const auto tp = out.draft_tensor_parallel_size; tp && *tp != 1 && *tp != target_tp)
    return bad("draft_tensor_parallel_size",
               "draft_tensor_parallel_size " + std::to_string(*tp) +
                   " is neither 1 nor the target's tensor parallel size " + std::to_string(target_tp),
               "leave it out: the draft then uses the target's");
  if (const Status ok = read_load_config(*object, out); !ok) return tl::unexpected(ok.error());
  return out;
}

std::string with_model(std::string_view text, const std::string& model) {
  json object = json::parse(text, nullptr, false);
  if (!object.is_object()) object = json::object();
  object["model"] = model;
  return object.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace wcache::draftroute

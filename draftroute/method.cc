#include "draftroute/method.h"

#include <algorithm>
#include <array>
#include <cctype>

namespace wcache::draftroute {
namespace {

using Words = draftroute::Words;

constexpr Words kNoWeights{"ngram", "ngram_gpu", "suffix", "extract_hidden_states", "custom_class"};
constexpr Words kSettled{"mtp", "draft_model", "medusa", "mlp_speculator"};
constexpr Words kKept{"eagle", "eagle3", "dflash", "dspark"};
constexpr Words kDsparkArchitectures{"Qwen3DSparkModel", "Qwen3OmniDSparkModel", "Gemma4DSparkModel"};

tl::unexpected<Error> bad(std::string_view key, std::string message, std::string hint = {}) {
  return fail(Reason::invalid, "speculative config: " + std::move(message), std::move(hint),
              std::string(key));
}

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

/// "package.module.Class": at least two identifiers joined by dots.
bool is_import_path(std::string_view text) {
  std::size_t parts = 0;
  while (true) {
    const std::string_view part = text.substr(0, text.find('.'));
    if (part.empty() || std::isdigit(static_cast<unsigned char>(part.front()))) return false;
    if (!std::all_of(part.begin(), part.end(), [](unsigned char c) { return std::isalnum(c) || c == '_'; }))
      return false;
    ++parts;
    if (part.size() == text.size()) return parts >= 2;
    text.remove_prefix(part.size() + 1);
  }
}

Method without_weights(std::string name) {
  Method method;
  method.model = name;
  method.name = std::move(name);
  method.loads_weights = false;
  return method;
}

/// What `model` means where the object does not give it.
Result<std::string> default_model(const SpeculativeConfig& spec, const std::string& target) {
  if (!spec.num_speculative_tokens && spec.method != "suffix")
    return bad("num_speculative_tokens", "num_speculative_tokens must be given where there is no model");
  if (spec.method == "mtp" || spec.method == "dspark") return target;
  return bad("model",
             spec.method.empty() ? std::string("neither a method nor a model is given")
                                 : "method " + spec.method + " needs a model",
             "add \"model\": the draft's directory");
}

/// The class that a substring of the draft's path or its architecture forces; empty: none.
std::string_view forced_by_path(std::string_view path) {
  for (std::string_view word : {"eagle-", "eagle3", "dflash", "dspark"})
    if (path.find(word) != std::string_view::npos) return word == "eagle-" ? std::string_view("eagle") : word;
  return {};
}

std::string_view forced_by_architecture(const DraftView& view) {
  if (view.architecture == "MuseGlimmerAssistantModel") return "dflash";
  if (kDsparkArchitectures.contains(view.architecture)) return "dspark";
  if (view.architecture == "DSparkDraftModel" && view.model_type == "qwen3") return "dspark";
  return {};
}

Status check_tokens(const SpeculativeConfig& spec, const Method& method) {
  const auto tokens = spec.num_speculative_tokens;
  if (!tokens && (method.name == "mtp" || !method.n_predict))
    return bad("num_speculative_tokens", "num_speculative_tokens must be given with method " + method.name);
  if (tokens && method.n_predict && *method.n_predict > 0 && *tokens > *method.n_predict &&
      *tokens % *method.n_predict != 0)
    return bad("num_speculative_tokens",
               "num_speculative_tokens " + std::to_string(*tokens) + " is not a multiple of the " +
                   std::to_string(*method.n_predict) + " that the draft predicts a step");
  return {};
}

/// Steps 5 to 13 of vLLM's detection, for method mtp, draft_model, medusa, mlp_speculator or none.
Status detect(const SpeculativeConfig& spec, const ModelConfig& target_config, Method& method) {
  const DraftView& view = *method.view;
  std::string_view forced = forced_by_path(lower(method.model));
  const bool by_path = !forced.empty();
  if (forced.empty()) forced = forced_by_architecture(view);
  if (!forced.empty()) {
    method.name = forced;
    if (by_path && spec.method != forced)
      method.note = "the draft's path '" + method.model + "' makes the engine take it for " + method.name;
    return {};
  }
  if (view.model_type == "medusa" || view.model_type == "mlp_speculator") {
    method.name = view.model_type;
    return {};
  }
  if (view.family != nullptr) {
    if (target_config.model_type() == "deepseek_v41")
      return bad("method", "deepseek_v41 has no MTP layers: its mtp.* tensors are DSpark stages",
                 "use method dspark");
    method.name = "mtp";
    if (!spec.method.empty() && spec.method != "mtp")
      method.note = "the draft's config makes it an MTP draft";
    return {};
  }
  if (spec.method.empty() || spec.method == "draft_model") {
    method.name = "draft_model";
    return {};
  }
  return bad(
      "method",
      "method " + spec.method_as_given + " does not fit the draft '" + method.model + "' (model_type '" +
          view.model_type + "', architecture '" + view.architecture + "')",
      spec.method == "mtp" ? "give a checkpoint with MTP layers, or leave method out" : "leave method out");
}

}  // namespace

bool loads_draft_weights(std::string_view method) {
  return kSettled.contains(method) || kKept.contains(method);
}

Result<Method> settle_method(const SpeculativeConfig& spec, const std::string& target,
                             const ModelConfig& target_config) {
  std::string name = spec.method;
  if (name.empty() && is_import_path(spec.model)) name = "custom_class";
  if (name.empty() && (spec.model == "ngram" || spec.model == "[ngram]")) name = "ngram";
  if (kNoWeights.contains(name)) {
    if (name == "custom_class" && spec.model.empty())
      return bad("model", "method custom_class needs a model");
    if (!spec.num_speculative_tokens && name != "suffix" && name != "custom_class")
      return bad("num_speculative_tokens", "num_speculative_tokens must be given with method " + name);
    return without_weights(name);
  }

  Method method;
  method.model = spec.model;
  if (spec.model.empty()) {
    Result<std::string> model = default_model(spec, target);
    if (!model) return tl::unexpected(model.error());
    method.model = *model;
    method.inside_target = true;
  }
  if (kKept.contains(name)) {
    method.name = name;
    if (const auto config = ModelConfig::read(method.model, "model")) {
      method.view = draft_view(*config);
      method.n_predict = config->count("n_predict");
    } else if (std::filesystem::path(method.model).is_absolute()) {
      return tl::unexpected(config.error());
    }
    if (!spec.num_speculative_tokens && !method.n_predict)
      return bad("num_speculative_tokens", "num_speculative_tokens must be given with method " + name);
    return method;
  }
  const Result<ModelConfig> config =
      method.inside_target ? Result<ModelConfig>(target_config) : ModelConfig::read(method.model, "model");
  if (!config) return tl::unexpected(config.error());
  method.view = draft_view(*config);
  method.n_predict = method.view->family != nullptr ? method.view->layers : config->count("n_predict");
  if (const Status ok = detect(spec, target_config, method); !ok) return tl::unexpected(ok.error());
  if (const Status ok = check_tokens(spec, method); !ok) return tl::unexpected(ok.error());
  return method;
}

std::optional<Method> speculators_method(const std::string& target, const ModelConfig& target_config) {
  const std::string algorithm = target_config.text("speculators_config.algorithm");
  if (algorithm.empty()) return std::nullopt;
  Method method;
  method.name = algorithm;
  method.model = target;
  method.note =
      "the model is a draft in speculators form; the engine loads the verifier it names as its target";
  method.view = draft_view(target_config);
  return method;
}

}  // namespace wcache::draftroute

#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "core/result.h"
#include "draftroute/model_config.h"
#include "draftroute/speculative_config.h"

namespace wcache::draftroute {

/// Whether this canonical method has draft weights to load at all.
bool loads_draft_weights(std::string_view method);

/// The settled method and the draft it is about.
struct Method {
  std::string name;  ///< canonical: mtp, eagle, eagle3, dflash, dspark, draft_model, medusa, mlp_speculator,
                     ///< ngram, ...
  std::string
      model;  ///< the draft's path as the engine sees it; the method's own name where nothing is loaded
  bool loads_weights = true;
  bool inside_target = false;  ///< the draft's tensors are in the target's own checkpoint
  std::string note;            ///< what won over what was asked for, for the reason; empty: nothing
  std::optional<DraftView>
      view;  ///< of the draft's config; absent where it was not needed to settle the method
  std::optional<std::uint32_t> n_predict;  ///< tokens a step the draft's config promises
};

/// Settles the method as vLLM 0.32 does: detection from the draft's config, and the substrings `eagle-`,
/// `eagle3`, `dflash`, `dspark` anywhere in the draft's lower-cased path, which win over method mtp and
/// draft_model. `target` is the target's path as given, `target_config` its config. Reads at most the draft's
/// config.json.
Result<Method> settle_method(const SpeculativeConfig& spec, const std::string& target,
                             const ModelConfig& target_config);

/// For a target whose own config says that it is a draft in "speculators" form; nullopt for every other.
std::optional<Method> speculators_method(const std::string& target, const ModelConfig& target_config);

}  // namespace wcache::draftroute

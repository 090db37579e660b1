#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "core/result.h"

namespace wcache::draftroute {

/// What of vLLM's `--speculative-config` object says how a draft is loaded. The other keys are checked (name
/// and type) and carried along unread.
struct SpeculativeConfig {
  std::string method;           ///< canonical: every MTP alias is "mtp"; empty: not given
  std::string method_as_given;  ///< before that; empty: not given
  std::string model;            ///< empty: not given
  std::optional<std::uint32_t> num_speculative_tokens;
  std::optional<std::uint32_t> draft_tensor_parallel_size;
  bool has_draft_load_config = false;
  std::string draft_load_format;  ///< of draft_load_config; "auto" where it does not say
  bool draft_load_is_draft = false;
};

/// Parses and checks the object as vLLM 0.32 does while it reads it: unknown keys, unknown methods, wrong
/// types, the `tensor_parallel_size` trap, draft TP neither 1 nor the target's. Dashed keys and numbers
/// written as strings are accepted, as vLLM accepts them; a list of pairs instead of an object is refused,
/// which vLLM's parser would take. Every error is Reason::invalid and names the key.
Result<SpeculativeConfig> parse_speculative_config(std::string_view text, std::uint32_t target_tp);

/// The same object with `model` replaced (added where absent) and MTP aliases written as given. Precondition:
/// `text` parses. Used for `--print speculative-config`.
std::string with_model(std::string_view text, const std::string& model);

}  // namespace wcache::draftroute

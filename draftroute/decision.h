#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/entry_plan.h"
#include "core/result.h"
#include "draftroute/method.h"

namespace wcache::draftroute {

enum class DecisionKind {
  cache,     ///< a daemon group of its own serves the draft
  disk,      ///< the engine loads the draft from disk; `reason` says why
  as_given,  ///< "explicit": draft_load_config says how, and is left alone
  none,      ///< no draft, or one without weights
};
std::string_view to_string(DecisionKind kind);  ///< "cache", "disk", "explicit", "none"

enum class SharedTensors { include, omit };

/// The question: a target, how it is run, and vLLM's `--speculative-config` object.
struct RouteRequest {
  std::string target;                      ///< MODEL as given: the engine sees the same path
  std::optional<std::string> speculative;  ///< the object's text; absent: no draft asked for
  std::uint32_t tp_size = 1;
  std::vector<std::string> draft_methods = {"mtp"};  ///< methods whose drafts are cached
  SharedTensors shared = SharedTensors::include;
};

/// The answer, from configurations alone. What a running node adds (fingerprint, path, socket, state) is not
/// here.
struct Decision {
  DecisionKind kind = DecisionKind::none;
  std::string method;         ///< canonical; empty where no draft was asked for
  std::string model;          ///< the draft's path, or the method's own name
  std::string architecture;   ///< the draft's, rewritten as the engine rewrites it; empty when unknown
  std::uint32_t tp_size = 1;  ///< the draft's
  std::optional<std::uint32_t> num_mtp_layers;
  std::string load_format;  ///< "auto", or what draft_load_config says; empty for none
  std::string reason;       ///< a sentence; never empty
  bool inside_target = false;
  const MtpFamily* family = nullptr;
};

/// Decides as the contract's table says, first match wins (docs/routing.md). Reads config.json of the target
/// and of the draft, nothing else. An invalid object is an error (Reason::invalid) that names the key.
Result<Decision> decide(const RouteRequest& request);

/// Precondition: decision.kind is cache. What the draft's daemon has to hold: for MTP drafts one
/// model.safetensors of the chosen tensors, else the whole checkpoint. Reads headers only. No MTP tensors
/// although the config promises some, or the reverse: Reason::invalid, naming what was looked for and found.
/// A checkpoint that is sharded by rank: Reason::unsupported.
Result<EntryPlan> plan_draft(const RouteRequest& request, const Decision& decision);

/// decide(), then for `cache` what plan_draft finds: `disk` for what cannot be cached (unsupported), an error
/// for a checkpoint that contradicts its config. `plan` receives the plan when the decision is cache.
Result<Decision> route(const RouteRequest& request, std::optional<EntryPlan>* plan = nullptr);

}  // namespace wcache::draftroute

#include "draftroute/decision.h"

#include <algorithm>

#include "draftroute/mtp_plan.h"

namespace wcache::draftroute {
namespace {

std::string with_note(const Method& method, std::string reason) {
  return method.note.empty() ? reason : method.note + "; " + reason;
}

void describe(const Method& method, Decision& out) {
  out.method = method.name;
  out.model = method.model;
  out.inside_target = method.inside_target;
  if (!method.view) return;
  out.architecture = method.view->architecture;
  out.family = method.view->family;
  if (method.name == "mtp") out.num_mtp_layers = method.view->layers;
}

/// Rows of the table below `none`: the draft has weights, and no draft_load_config says what to do with them.
void choose(const RouteRequest& request, const Method& method, Decision& out) {
  out.load_format = "auto";
  const bool admitted = std::find(request.draft_methods.begin(), request.draft_methods.end(), method.name) !=
                        request.draft_methods.end();
  if (!admitted) {
    out.kind = DecisionKind::disk;
    out.reason =
        with_note(method, "method " + method.name + " is not among the methods whose drafts are cached (" +
                              (request.draft_methods.empty() ? "none" : request.draft_methods.front()) +
                              "); --draft-methods admits it");
    return;
  }
  if (out.tp_size != request.tp_size) {
    out.kind = DecisionKind::disk;
    out.reason =
        with_note(method, "a cached draft must use the target's tensor parallel size " +
                              std::to_string(request.tp_size) + ", not " + std::to_string(out.tp_size));
    return;
  }
  out.kind = DecisionKind::cache;
  out.reason = with_note(method, "the draft0 group is to serve it");
}

}  // namespace

std::string_view to_string(DecisionKind kind) {
  switch (kind) {
    case DecisionKind::cache:
      return "cache";
    case DecisionKind::disk:
      return "disk";
    case DecisionKind::as_given:
      return "explicit";
    case DecisionKind::none:
      return "none";
  }
  return "none";
}

Result<Decision> decide(const RouteRequest& request) {
  const Result<ModelConfig> target_config = ModelConfig::read(request.target, "MODEL");
  Decision out;
  out.tp_size = request.tp_size;
  if (!request.speculative) {
    const auto method = target_config ? speculators_method(request.target, *target_config) : std::nullopt;
    if (!method) {
      out.reason = "no draft is asked for";
      return out;
    }
    describe(*method, out);
    choose(request, *method, out);
    return out;
  }
  const Result<SpeculativeConfig> spec = parse_speculative_config(*request.speculative, request.tp_size);
  if (!spec) return tl::unexpected(spec.error());
  if (!target_config) return tl::unexpected(target_config.error());
  const Result<Method> method = settle_method(*spec, request.target, *target_config);
  if (!method) return tl::unexpected(method.error());
  describe(*method, out);
  out.tp_size =
      spec->draft_tensor_parallel_size.value_or(method->name == "mlp_speculator" ? 1 : request.tp_size);
  if (spec->has_draft_load_config) {
    out.kind = DecisionKind::as_given;
    out.load_format = spec->draft_load_format;
    out.reason = with_note(*method, "draft_load_config says how the draft is loaded");
    return out;
  }
  if (!method->loads_weights) {
    out.reason = "method " + method->name + " loads no draft weights";
    return out;
  }
  choose(request, *method, out);
  return out;
}

Result<EntryPlan> plan_draft(const RouteRequest& request, const Decision& decision) {
  Result<Checkpoint> checkpoint = open_checkpoint(decision.model);
  if (!checkpoint) return tl::unexpected(checkpoint.error());
  const bool whole = decision.family == nullptr || decision.family->prefixes.empty();
  if (whole) return plan_checkpoint(std::move(*checkpoint), Role::draft0);
  const Result<ModelConfig> config = ModelConfig::read(decision.model, "model");
  if (!config) return tl::unexpected(config.error());
  return plan_mtp(std::move(*checkpoint), *decision.family, decision.num_mtp_layers,
                  config->num_hidden_layers(), request.shared);
}

Result<Decision> route(const RouteRequest& request, std::optional<EntryPlan>* plan) {
  Result<Decision> decision = decide(request);
  if (!decision || decision->kind != DecisionKind::cache) return decision;
  Result<EntryPlan> planned = plan_draft(request, *decision);
  if (planned) {
    if (plan != nullptr) *plan = std::move(*planned);
    return decision;
  }
  if (planned.error().reason != Reason::unsupported) return tl::unexpected(planned.error());
  decision->kind = DecisionKind::disk;
  decision->reason = planned.error().message;
  return decision;
}

}  // namespace wcache::draftroute

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/checkpoint/checkpoint.h"
#include "core/entry_plan.h"
#include "core/result.h"
#include "draftroute/decision.h"
#include "draftroute/families.h"

namespace wcache::draftroute {

/// The family's prefixes with {N+i} and {i} filled in, one list a layer; a family without placeholders has
/// one list.
std::vector<std::vector<std::string>> expand_prefixes(const MtpFamily& family, std::uint32_t layers,
                                                      std::uint32_t num_hidden_layers);

/// The draft of an MTP checkpoint as an entry of its own (layout mtp): one model.safetensors that holds
/// exactly the family's draft tensors, with the embedding and head its loaders read unless they are omitted
/// or the draft has its own; the checkpoint's non-weight files but no index. Header keys are sorted by name;
/// data is laid out by alignment of the element type, then name, so that every tensor is aligned to its
/// element. `layers` is what the config promises: 0 or absent contradicts tensors that are there (families
/// with an own prefix may leave it out).
Result<EntryPlan> plan_mtp(Checkpoint checkpoint, const MtpFamily& family,
                           std::optional<std::uint32_t> layers, std::uint32_t num_hidden_layers,
                           SharedTensors shared);

}  // namespace wcache::draftroute

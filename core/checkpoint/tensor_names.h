#pragma once

#include <vector>

#include "core/checkpoint/checkpoint.h"
#include "core/checkpoint/weight_index.h"
#include "core/result.h"

namespace wcache {

/// Settles which file a tensor's name means, and marks the others' `shadowed`. `files` are sorted by name;
/// `index` may be null. Reason::corrupt where
///   - the index puts a tensor into a safetensors file that lacks it, or
///   - two safetensors files hold a name that no index decides on.
/// Two kinds of directory rightly have a name several times, and there the first file by name gets it:
/// several GGUF files (quantizations of one model), and the ranks of a sharded checkpoint
/// (model-rank-0-part-0.safetensors ...).
Status settle_tensor_names(std::vector<SourceFile>& files, const WeightIndex* index);

}  // namespace wcache

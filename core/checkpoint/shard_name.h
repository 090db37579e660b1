#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace wcache {

/// R of "model-rank-R-part-P.safetensors", vLLM's sharded_state naming; nullopt for other names.
std::optional<std::uint32_t> shard_rank(std::string_view name);

}  // namespace wcache

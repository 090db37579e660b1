#pragma once

#include <string>
#include <string_view>

#include "core/checkpoint/checkpoint.h"

namespace wcache {

/// By the name's suffix alone, as engines go by it: lower case counts, and only that.
FileKind kind_of_name(std::string_view name);

/// .bin, .pt and .pth: what an engine reads only where there are no safetensors.
bool is_torch_file(std::string_view name);

/// The suffixes of weights, for messages: ".safetensors, .gguf, .bin, ...".
std::string known_weight_suffixes();

}  // namespace wcache

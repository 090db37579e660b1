#pragma once

#include <string>
#include <string_view>

#include "core/result.h"

namespace wcache {

/// What config.json says of the model as a whole; each may be empty.
struct ModelConfig {
  std::string architecture;  ///< architectures[0]
  std::string dtype;         ///< dtype or torch_dtype, without "torch."
  std::string quantization;  ///< quantization_config.quant_method
};

/// `text` is the whole of a config.json. Multimodal models keep dtype and quantization below text_config:
/// looked at where the top says nothing. What Python's json also reads (NaN, Infinity: real checkpoints have
/// them) is accepted; what it refuses as well is Reason::corrupt.
Result<ModelConfig> parse_model_config(std::string_view text, std::string_view name);

}  // namespace wcache

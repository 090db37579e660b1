#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace wcache {

/// How ggml lays out one tensor type: `block` elements of a row take `nbytes` bytes.
struct GgmlType {
  std::uint32_t id = 0;
  std::string_view name;  ///< as ggml_type_name gives it
  std::uint32_t block = 1;
  std::uint32_t nbytes = 0;
};

/// nullopt for an id that ggml never had, has removed, or has added since this table was made.
std::optional<GgmlType> ggml_type(std::uint32_t id);

}  // namespace wcache

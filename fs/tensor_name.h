#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace wcache {

/// The file name of a tensor below `.wcache/tensors`: '/' is %2F, '%' is %25, NUL is %00, "." is %2E, ".." is
/// %2E%2E. Nothing for a name that is empty or longer than 255 bytes once escaped: such a tensor is in the
/// manifest only.
std::optional<std::string> escape_tensor_name(std::string_view name);

/// The inverse. Nothing for a file name that escape_tensor_name cannot have given, so that each tensor has
/// one name.
std::optional<std::string> unescape_tensor_name(std::string_view file_name);

}  // namespace wcache

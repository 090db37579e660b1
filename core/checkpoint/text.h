#pragma once

#include <string>
#include <string_view>

namespace wcache {

/// A name out of a file that nobody has vouched for, as it goes into a message: printable (core/format.h), in
/// single quotes, and cut where it is longer than 200 bytes.
std::string in_quotes(std::string_view name);

}  // namespace wcache

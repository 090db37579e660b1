#pragma once

#include <string_view>

namespace wcache {

/// The project's version, "MAJOR.MINOR.PATCH": that of every program and library of one build.
std::string_view version();

}  // namespace wcache

#include "core/version.h"

namespace wcache {

std::string_view version() { return WCACHE_VERSION; }

}  // namespace wcache

#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "fs/entry.h"
#include "ipc/protocol.h"

namespace wcache {

/// What README at the root of the mount says.
std::string_view readme_text();

/// status.json of one entry: the state, who holds it by open files, and where it came from, in the fields of
/// `wcache status --json`. `partner` is its draft or target, or nullptr; `mount` is the mount point.
std::string entry_status_text(const Entry& entry, const Entry* partner, const std::vector<Holder>& holders,
                              std::string_view mount);

}  // namespace wcache

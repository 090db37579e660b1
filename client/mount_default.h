#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>

#include "core/digest.h"
#include "core/entry_plan.h"
#include "ipc/protocol.h"

namespace wcache {

/// Where launchers mount when no option says so: /mnt/wcache for root, else "<run dir>/mnt".
std::string default_mount_path(uid_t uid, std::string_view run_dir);

/// Where an entry is in the tree of this mount, or of the default one while there is none.
std::string path_in_tree(const std::optional<MountStatus>& mount, std::string_view run_dir, Role role,
                         const Fingerprint& fingerprint);

}  // namespace wcache

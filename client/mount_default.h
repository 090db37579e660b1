#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>

namespace wcache {

/// Where launchers mount when no option says so: /mnt/wcache for root, else "<run dir>/mnt".
std::string default_mount_path(uid_t uid, std::string_view run_dir);

}  // namespace wcache

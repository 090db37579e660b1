#include "client/mount_default.h"

namespace wcache {

std::string default_mount_path(uid_t uid, std::string_view run_dir) {
  return uid == 0 ? "/mnt/wcache" : std::string(run_dir) + "/mnt";
}

}  // namespace wcache

#include "client/mount_default.h"

#include <unistd.h>

namespace wcache {

std::string default_mount_path(uid_t uid, std::string_view run_dir) {
  return uid == 0 ? "/mnt/wcache" : std::string(run_dir) + "/mnt";
}

std::string path_in_tree(const std::optional<MountStatus>& mount, std::string_view run_dir, Role role,
                         const Fingerprint& fingerprint) {
  const std::string root = mount ? mount->path : default_mount_path(geteuid(), run_dir);
  return root + "/" + std::string(to_string(role)) + "/" + to_hex(fingerprint);
}

}  // namespace wcache

#pragma once

#include <string>
#include <vector>

#include "fs/node.h"

namespace wcache {

/// One attribute that says where bytes are on a device.
struct DeviceXattr {
  std::string name;     ///< after the prefix
  std::string value;    ///< the raw bytes of a CUipcMemHandle, otherwise text
  bool handle = false;  ///< gives access to the memory: for the owner alone
};

/// Those of a weight file or a tensor on a device, in the order of the documentation; none on other nodes.
/// `control_socket`: wcachefs's own, which redeems the slabs of daemons that are gone.
std::vector<DeviceXattr> device_xattrs(const Node& node, const std::string& control_socket);

}  // namespace wcache

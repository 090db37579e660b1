#include "fs/open_mode.h"

namespace wcache {

std::string_view to_string(OpenMode mode) {
  switch (mode) {
    case OpenMode::passthrough:
      return "passthrough";
    case OpenMode::direct:
      return "direct";
    case OpenMode::cached:
      return "cached";
  }
  return "cached";
}

OpenMode open_mode(NodeKind kind, const ServingCaps& caps) {
  switch (kind) {
    case NodeKind::file:
    case NodeKind::manifest:
      if (caps.passthrough) return OpenMode::passthrough;
      return caps.direct_mmap ? OpenMode::direct : OpenMode::cached;
    // A run of an image that begins at no page boundary: the kernel has nothing to pass through to.
    case NodeKind::tensor:
      return caps.direct_mmap ? OpenMode::direct : OpenMode::cached;
    case NodeKind::node_status:
    case NodeKind::entry_status:
      return OpenMode::direct;
    default:
      return OpenMode::cached;
  }
}

}  // namespace wcache

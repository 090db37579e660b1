#pragma once

#include <string_view>

#include "fs/node.h"

namespace wcache {

/// How the reads of an open file are served. Decided per inode, since the kernel refuses to mix passthrough
/// with the others on one.
enum class OpenMode {
  passthrough,  ///< by the kernel, from the daemon's memory; mappings are that memory
  direct,       ///< by replies, past the page cache; a mapping holds the bytes a second time
  cached,       ///< by replies, through the page cache
};
std::string_view to_string(OpenMode mode);

/// What kernel, library and rights allow; see Passthrough.
struct ServingCaps {
  bool passthrough = false;
  bool direct_mmap = false;  ///< direct I/O does not rule out shared mappings
};

/// The mode of a file's inode. Status files are always direct: their bytes differ from one open to the next.
/// What is on a device is not there to be passed through: give caps without it.
OpenMode open_mode(NodeKind kind, const ServingCaps& caps);

}  // namespace wcache

#pragma once

#include <string>

struct fuse_conn_info;

namespace wcache {

/// What was agreed with the kernel beyond passthrough.
struct Negotiated {
  bool direct_mmap = false;  ///< direct I/O does not rule out shared mappings
  std::string summary;       ///< for the log
};

/// Of init: sets every capability explicitly, because the library's defaults differ from version to version.
Negotiated negotiate_capabilities(fuse_conn_info& conn);

}  // namespace wcache

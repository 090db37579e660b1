#pragma once

#include <string>
#include <string_view>

#include "core/result.h"
#include "ipc/client.h"
#include "ipc/deadline.h"
#include "ipc/protocol.h"

namespace wcache {

/// What the text of an ipc_handle attribute of kind cuda-vmm says.
struct HandleLine {
  std::string socket;
  SlabRequest slab;
};

/// "slab=0 socket=/run/wcache/wcache_....sock"; of an entry whose daemon has died also role=, fingerprint=
/// and rank=. The socket is the last: its path may hold spaces. invalid for anything else.
Result<HandleLine> parse_handle_line(std::string_view line);

/// Asks the socket for the slab's descriptor, which outlives daemon and connection. invalid for a line that
/// is none; otherwise the errors of Client::connect and of who answers.
Result<SlabDescriptor> redeem(std::string_view line, Deadline deadline);

}  // namespace wcache

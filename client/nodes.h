#pragma once

#include <cstdint>
#include <string>

#include "core/result.h"
#include "daemon/supervisor/plan.h"
#include "ipc/run_dir.h"

namespace wcache {

/// What the options about nodes say on the command line; an empty word was not given.
struct NodeWords {
  std::string nnodes, node_rank, master_addr, master_port, draft_master_port, token_file;
};

inline constexpr std::uint16_t kDefaultMasterPort = 29501;

/// The nodes of a launch. Reason::invalid, with the option as key, for words that are none, for two groups at
/// one port, for nodes that do not share `tp_size` ranks evenly, and with several nodes for an address or a
/// token that is missing. The token is that of the file, else of WCACHE_RENDEZVOUS_TOKEN.
Result<NodesPlan> plan_nodes(const NodeWords& words, std::uint32_t tp_size,
                             const RunDir::Environment& environment);

}  // namespace wcache

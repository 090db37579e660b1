#pragma once

#include <optional>
#include <vector>

#include "client/node_status.h"
#include "core/result.h"
#include "daemon/supervisor/plan.h"
#include "ipc/run_dir.h"

namespace wcache {

/// Why a group that others serve is not what was asked for: one role and fingerprint has one group, wherever
/// it is. Reason::mismatch with the key device or ipc; nullopt where it will do.
std::optional<Error> mismatch_of(const LaunchPlan& launch, const GroupPlan& plan, const GroupStatus& served);

/// The ranks whose daemons answer at their sockets and serve. Waits two seconds in all for those that do not.
std::vector<RankStatus> serving_ranks(const RunDir& run_dir);

}  // namespace wcache

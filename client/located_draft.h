#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "client/device_choice.h"
#include "core/entry_plan.h"
#include "core/fingerprint.h"
#include "core/result.h"
#include "draftroute/decision.h"

namespace wcache {

/// A decision about a draft, and where this node has what it is about. Empty texts: not known, or not of this
/// decision.
struct LocatedDraft {
  draftroute::Decision decision;
  std::string fingerprint;
  std::string path;                  ///< in the tree, or where it would be
  std::vector<std::string> sockets;  ///< likewise, one a daemon of this node, the lowest rank's first
  std::string state;                 ///< of the group; "not-running" without one
};

/// How a plan's key is had: read or remembered.
using ResolvePlan = std::function<Result<ResolvedKey>(const EntryPlan&)>;

/// draftroute::route, and for a draft that is cached its fingerprint and place. With `no_read`: the decision
/// from configs alone. Where nothing runs, its sockets are those of the devices that a preload would choose
/// by default; only then they are asked for. What the command, the library and whoever else asks get is this.
Result<LocatedDraft> locate_draft(const draftroute::RouteRequest& request, std::string_view run_dir,
                                  bool no_read, const ResolvePlan& resolve, const AskDevices& devices);

/// `wcache route --json`: one object and a newline.
std::string to_json(const LocatedDraft& located);

}  // namespace wcache

#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "client/node_status.h"

namespace wcache {

/// `wcache status --json`, and status.json at the root of the mount: one object and a newline. What is not
/// known is absent. `error` adds the member "error" of the contract.
std::string to_json(const NodeStatus& node, const Error* error = nullptr);

/// The error of a command that was asked for JSON: {"error": {...}} and a newline.
std::string to_json(const Error& error);

/// status.json of the node, whatever its state: where the run directory cannot be read the object has "error"
/// and no groups. Blocks up to the deadline for processes that do not answer: not for a thread that serves
/// requests.
std::string node_status_json(std::string_view run_dir,
                             std::chrono::milliseconds deadline = std::chrono::seconds(2));

}  // namespace wcache

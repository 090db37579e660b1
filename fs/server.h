#pragma once

#include <signal.h>
#include <spdlog/logger.h>

#include <functional>
#include <string>

#include "core/result.h"
#include "fs/options.h"
#include "ipc/run_dir.h"

namespace wcache {

/// Mounts and serves until a signal of `signals` (blocked in every thread) comes or the mount is taken away,
/// then takes everything down. `mounted` is called once the tree can be used and the control socket answers.
Status serve_mount(const Options& options, const RunDir& run_dir, const sigset_t& signals,
                   spdlog::logger& log, const std::function<void()>& mounted);

}  // namespace wcache

#pragma once

#include <string_view>

#include "core/result.h"
#include "ipc/run_dir.h"

namespace wcache {

/// RunDir::create, leaving a mark in a directory that it made, so that the last launcher removes it again.
Result<RunDir> make_run_dir(std::string_view path);

/// Whether the directory has the mark.
bool run_dir_was_made(const RunDir& run_dir);

/// Removes mark and directory if nothing else is in it. For the last launcher.
void remove_made_run_dir(const RunDir& run_dir);

/// Removes the sockets and locks that processes left which were killed.
void sweep_run_dir(const RunDir& run_dir);

}  // namespace wcache

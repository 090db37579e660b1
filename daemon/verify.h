#pragma once

#include <cstdint>
#include <functional>
#include <stop_token>

#include "core/result.h"
#include "daemon/store.h"
#include "ipc/protocol.h"

namespace wcache {

/// Hashes every byte of the entry again, manifest included, and says what differs first. `progress` is called
/// on the calling thread, a few times a second at most. Stopped: timeout.
Result<VerifyReply> verify_entry(const StoredEntry& entry,
                                 const std::function<void(std::uint64_t done, std::uint64_t total)>& progress,
                                 std::stop_token stop);

}  // namespace wcache

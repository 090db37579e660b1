#pragma once

#include <cstdint>
#include <string>

#include "core/fd.h"
#include "core/result.h"

namespace wcache::rendezvous {

/// A listening, non-blocking TCP socket at exactly this address. Reason::busy when the port is taken,
/// Reason::invalid when the address is not one of this machine's.
Result<Fd> listen_at(const std::string& address, std::uint16_t port);

/// A non-blocking TCP socket whose connect has begun.
Result<Fd> start_connect(const std::string& address, std::uint16_t port);

}  // namespace wcache::rendezvous

#pragma once

#include <cstddef>
#include <vector>

#include "core/fd.h"

namespace wcache {

/// One datagram: bytes and the descriptors that came, or go, with them.
struct Message {
  std::vector<std::byte> bytes;
  std::vector<Fd> fds;
};

/// What a receiver accepts. A message beyond either limit ends the connection.
struct MessageLimits {
  std::size_t bytes = std::size_t{64} << 10;
  std::size_t fds = 0;
};

/// The most bytes of any message. Half of what a Unix socket takes with the kernel's default buffers
/// (wmem_default).
inline constexpr std::size_t kMaxMessageBytes = std::size_t{64} << 10;

/// The most descriptors of any message; the kernel's own limit is 253 (SCM_MAX_FD).
inline constexpr std::size_t kMaxMessageFds = 250;

}  // namespace wcache

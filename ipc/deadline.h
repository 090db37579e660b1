#pragma once

#include <algorithm>
#include <chrono>

namespace wcache {

/// When a wait ends, whatever happened until then. Every wait on a socket takes one.
using Deadline = std::chrono::steady_clock::time_point;

inline Deadline deadline_in(std::chrono::milliseconds wait) {
  return std::chrono::steady_clock::now() + wait;
}

/// What is left of it for poll(2): milliseconds, rounded up, 0 once it has passed.
inline int remaining_ms(Deadline deadline) {
  const Deadline now = std::chrono::steady_clock::now();
  if (deadline <= now) return 0;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - now).count();
  return static_cast<int>(std::min<decltype(left)>(left, 1'000'000'000));
}

}  // namespace wcache

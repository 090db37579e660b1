#pragma once

#include <algorithm>
#include <chrono>

namespace wcache {

/// When a wait ends, whatever happened until then. Every wait on a socket takes one.
using Deadline = std::chrono::steady_clock::time_point;

inline Deadline deadline_in(std::chrono::milliseconds wait) { return std::chrono::steady_clock::now() + wait; }

/// What is left of it for poll(2): milliseconds, rounded up, 0 once it has passed.
inline int remaining_ms(Deadline deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<std::chrono::milliseconds::rep>(left.count(), 0, 1'000'000'000));
}

}  // namespace wcache

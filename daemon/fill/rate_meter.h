#pragma once

#include <chrono>
#include <cstdint>
#include <deque>

namespace wcache {

/// Bytes a second over a moving window.
class RateMeter {
 public:
  using Clock = std::chrono::steady_clock;

  explicit RateMeter(std::chrono::milliseconds window) : window_(window) {}

  /// `total` bytes have passed until `now`; neither goes back. Returns the rate since the oldest sample in
  /// the window.
  double add(Clock::time_point now, std::uint64_t total) {
    while (samples_.size() > 1 && samples_[1].at <= now - window_) samples_.pop_front();
    samples_.push_back({now, total});
    const std::chrono::duration<double> span = now - samples_.front().at;
    return span.count() > 0 ? static_cast<double>(total - samples_.front().total) / span.count() : 0;
  }

 private:
  struct Sample {
    Clock::time_point at;
    std::uint64_t total;
  };
  std::chrono::milliseconds window_;
  std::deque<Sample> samples_;
};

}  // namespace wcache

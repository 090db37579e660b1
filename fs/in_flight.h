#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>

namespace wcache {

/// Counts what is answered on other threads, so that the end can wait for it. Safe for concurrent use;
/// outlives its tokens.
class InFlight {
 public:
  /// Counted until the last copy of what it gives is gone.
  std::shared_ptr<const void> begin() {
    const std::lock_guard lock(mutex_);
    ++count_;
    return {this, [this](const void*) { end(); }};
  }

  /// Until nothing is counted; false when that took longer.
  bool wait_none(std::chrono::milliseconds wait) {
    std::unique_lock lock(mutex_);
    return none_.wait_for(lock, wait, [this] { return count_ == 0; });
  }

 private:
  void end() {
    const std::lock_guard lock(mutex_);
    if (--count_ == 0) none_.notify_all();
  }

  std::mutex mutex_;  // guards count_
  std::condition_variable none_;
  std::size_t count_ = 0;
};

}  // namespace wcache

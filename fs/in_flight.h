#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <utility>

namespace wcache {

/// Counts what is answered on other threads, so that the end can wait for it; what does not end in time is
/// never answered. Safe for concurrent use.
class InFlight {
  struct State {
    std::mutex mutex;  // guards count
    std::condition_variable none;
    std::size_t count = 0;
    std::shared_mutex answering;  // guards closed
    bool closed = false;
  };

 public:
  /// One that is counted, until it goes. May outlive the InFlight.
  class Counted {
   public:
    explicit Counted(std::shared_ptr<State> state) : state_(std::move(state)) {
      const std::lock_guard lock(state_->mutex);
      ++state_->count;
    }
    ~Counted() {
      const std::lock_guard lock(state_->mutex);
      if (--state_->count == 0) state_->none.notify_all();
    }
    Counted(const Counted&) = delete;
    Counted& operator=(const Counted&) = delete;

    /// Runs `answer`, which waits for nothing. False, and it is not run: what it would use may be gone.
    template <class Answer>
    bool give(Answer&& answer) const {
      const std::shared_lock lock(state_->answering);
      if (state_->closed) return false;
      std::forward<Answer>(answer)();
      return true;
    }

   private:
    const std::shared_ptr<State> state_;
  };

  bool closed() const {
    const std::shared_lock lock(state_->answering);
    return state_->closed;
  }

  std::shared_ptr<const Counted> begin() { return std::make_shared<Counted>(state_); }

  /// Waits until nothing is counted; false when that took longer. No answer is given after it returns.
  bool close(std::chrono::milliseconds wait) {
    bool none = false;
    {
      std::unique_lock lock(state_->mutex);
      none = state_->none.wait_for(lock, wait, [this] { return state_->count == 0; });
    }
    const std::unique_lock lock(state_->answering);
    state_->closed = true;
    return none;
  }

 private:
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace wcache

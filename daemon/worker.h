#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <stop_token>
#include <thread>

namespace wcache {

/// A thread that does one job after another, for what would hold up an event loop. The destructor asks the
/// job that runs to stop, waits for it, and drops the others.
class Worker {
 public:
  using Job = std::function<void(std::stop_token stop)>;

  Worker() : thread_([this](std::stop_token stop) { work(stop); }) {}

  void run(Job job) {
    {
      const std::lock_guard lock(mutex_);
      jobs_.push_back(std::move(job));
    }
    more_.notify_one();
  }

 private:
  void work(std::stop_token stop) {
    for (;;) {
      Job job;
      {
        std::unique_lock lock(mutex_);
        if (!more_.wait(lock, stop, [this] { return !jobs_.empty(); }) || stop.stop_requested()) return;
        job = std::move(jobs_.front());
        jobs_.pop_front();
      }
      job(stop);
    }
  }

  std::mutex mutex_;
  std::condition_variable_any more_;  // with mutex_
  std::deque<Job> jobs_;              // guarded by mutex_
  std::jthread thread_;               // last: it uses all of the above
};

}  // namespace wcache

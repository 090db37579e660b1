#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "core/fd.h"
#include "core/result.h"
#include "ipc/deadline.h"

namespace wcache {

/// The one thread of a daemon that talks: descriptors, timers, and what other threads hand over. Everything
/// but `post` belongs to the thread that runs it; callbacks run there, one at a time, and may call anything
/// here.
class EventLoop {
 public:
  using Ready = std::function<void(std::uint32_t events)>;
  using Task = std::function<void()>;
  using TimerId = std::pair<Deadline, std::uint64_t>;

  static Result<std::unique_ptr<EventLoop>> create();

  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  /// Calls `ready` whenever epoll(7) reports `events` (EPOLLHUP and EPOLLERR come unasked). `fd` is borrowed:
  /// unwatch it before it is closed. A number that is closed and used again may bring one call too many, so
  /// callbacks must stand finding nothing there.
  Status watch(int fd, std::uint32_t events, Ready ready);
  void change(int fd, std::uint32_t events);
  void unwatch(int fd);

  TimerId at(Deadline when, Task task);
  void cancel(const TimerId& timer);

  /// Runs `task` on the loop's thread. From any thread, and after the loop has ended too: then it never runs.
  void post(Task task);

  /// Until stop(). Errors of epoll itself only.
  Status run();
  void stop() { stopped_ = true; }

 private:
  EventLoop(Fd epoll, Fd wake) : epoll_(std::move(epoll)), wake_(std::move(wake)) {}
  void run_posted();
  void run_timers();
  int wait_ms() const;

  Fd epoll_;
  Fd wake_;
  std::map<int, std::shared_ptr<Ready>> watched_;
  std::map<TimerId, Task> timers_;
  std::uint64_t last_timer_ = 0;
  bool stopped_ = false;

  std::mutex mutex_;
  std::vector<Task> posted_;  // guarded by mutex_
};

}  // namespace wcache

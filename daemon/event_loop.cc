#include "daemon/event_loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <string>

namespace wcache {

Result<std::unique_ptr<EventLoop>> EventLoop::create() {
  Fd epoll = Fd::adopt(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) return fail_errno("making an epoll descriptor", errno);
  Fd wake = Fd::adopt(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake) return fail_errno("making an eventfd", errno);
  std::unique_ptr<EventLoop> loop(new EventLoop(std::move(epoll), std::move(wake)));
  EventLoop* self = loop.get();
  if (Status watched = loop->watch(self->wake_.get(), EPOLLIN, [self](std::uint32_t) { self->run_posted(); });
      !watched)
    return fail(watched.error());
  return loop;
}

Status EventLoop::watch(int fd, std::uint32_t events, Ready ready) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0)
    return fail_errno("watching descriptor " + std::to_string(fd), errno);
  watched_[fd] = std::make_shared<Ready>(std::move(ready));
  return {};
}

void EventLoop::change(int fd, std::uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  if (watched_.contains(fd)) epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event);
}

void EventLoop::unwatch(int fd) {
  if (watched_.erase(fd) > 0) epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

EventLoop::TimerId EventLoop::at(Deadline when, Task task) {
  const TimerId id{when, ++last_timer_};
  timers_.emplace(id, std::move(task));
  return id;
}

void EventLoop::cancel(const TimerId& timer) {
  timers_.erase(timer);
}

void EventLoop::post(Task task) {
  {
    const std::lock_guard lock(mutex_);
    posted_.push_back(std::move(task));
  }
  const std::uint64_t one = 1;
  // Only a counter at its maximum refuses, and then the loop wakes up anyway.
  [[maybe_unused]] const ssize_t n = write(wake_.get(), &one, sizeof one);
}

void EventLoop::run_posted() {
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t n = read(wake_.get(), &count, sizeof count);
  std::vector<Task> tasks;
  {
    const std::lock_guard lock(mutex_);
    tasks.swap(posted_);
  }
  for (const Task& task : tasks) task();
}

void EventLoop::run_timers() {
  const Deadline now = std::chrono::steady_clock::now();
  while (!timers_.empty() && timers_.begin()->first.first <= now) {
    const Task task = std::move(timers_.begin()->second);
    timers_.erase(timers_.begin());
    task();
  }
}

int EventLoop::wait_ms() const {
  return timers_.empty() ? -1 : remaining_ms(timers_.begin()->first.first);
}

Status EventLoop::run() {
  std::array<epoll_event, 64> events{};
  while (!stopped_) {
    const int count = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), wait_ms());
    if (count < 0 && errno != EINTR) return fail_errno("waiting for events", errno);
    for (int i = 0; i < count; ++i) {
      const epoll_event& event = events.at(static_cast<std::size_t>(i));
      const auto found = watched_.find(event.data.fd);
      if (found == watched_.end()) continue;
      const std::shared_ptr<Ready> ready = found->second;  // kept alive: it may unwatch itself
      (*ready)(event.events);
    }
    run_timers();
  }
  return {};
}

}  // namespace wcache

#include "fs/status_thread.h"

#include <exception>
#include <utility>

namespace wcache {

StatusThread::StatusThread(std::function<std::string()> make)
    : make_(std::move(make)), thread_([this] { loop(); }) {}

void StatusThread::ask(Answer answer) {
  const std::lock_guard lock(mutex_);
  if (stopped_) return;
  waiting_.push_back(std::move(answer));
  changed_.notify_one();
}

void StatusThread::stop() {
  std::vector<Answer> dropped;
  std::vector<std::function<void()>> tasks;
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    dropped = std::exchange(waiting_, {});
    tasks = std::exchange(tasks_, {});
    changed_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
}

std::size_t StatusThread::last_nbytes() const {
  const std::lock_guard lock(mutex_);
  return last_nbytes_;
}

void StatusThread::run(std::function<void()> task) {
  const std::lock_guard lock(mutex_);
  if (stopped_) return;
  tasks_.push_back(std::move(task));
  changed_.notify_one();
}

void StatusThread::loop() {
  for (;;) {
    std::vector<Answer> asked;
    std::vector<std::function<void()>> tasks;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stopped_ || !waiting_.empty() || !tasks_.empty(); });
      if (stopped_) return;
      asked = std::exchange(waiting_, {});
      tasks = std::exchange(tasks_, {});
    }
    for (const std::function<void()>& task : tasks) try {
        task();
      } catch (const std::exception&) {  // whoever waits is answered by what the task owned
      }
    if (!asked.empty()) answer(asked);
  }
}

void StatusThread::answer(const std::vector<Answer>& asked) {
  std::shared_ptr<const std::string> text;
  try {
    text = std::make_shared<const std::string>(make_());
  } catch (const std::exception&) {  // answered as a failure
  }
  {
    const std::lock_guard lock(mutex_);
    if (text) last_nbytes_ = text->size();
  }
  for (const Answer& each : asked) each(text);
}

}  // namespace wcache

#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace wcache {

/// A thread for answers that take their time, so that asking other processes never holds up a request of the
/// kernel's: the node's status text, and whatever else is given to it. Who asks for the text while one is
/// being made shares the next one. Safe for concurrent use.
class StatusThread {
 public:
  using Answer = std::function<void(std::shared_ptr<const std::string> text)>;  ///< nullptr: it failed

  /// `make` runs on the thread and must come back within seconds by itself.
  explicit StatusThread(std::function<std::string()> make);
  ~StatusThread() { stop(); }

  /// Calls `answer` on the thread, once. After stop it is dropped instead.
  void ask(Answer answer);

  /// Runs `task` on the thread, once, in order. After stop it is dropped instead. Exceptions end in nothing.
  void run(std::function<void()> task);

  /// Lets what is being done finish, drops what still waits, and ends the thread.
  void stop();

  /// Bytes of the last text made; 0 before the first.
  std::size_t last_nbytes() const;

 private:
  void loop();
  void answer(const std::vector<Answer>& asked);

  std::function<std::string()> make_;
  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::vector<Answer> waiting_;
  std::vector<std::function<void()>> tasks_;
  std::size_t last_nbytes_ = 0;
  bool stopped_ = false;
  std::thread thread_;
};

}  // namespace wcache

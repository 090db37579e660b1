#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace wcache {

/// Makes the node's status text on a thread of its own, so that asking other processes never holds up a
/// request of the kernel's. Who asks while a text is being made shares the next one. Safe for concurrent use.
class StatusThread {
 public:
  using Answer = std::function<void(std::shared_ptr<const std::string> text)>;  ///< nullptr: it failed

  /// `make` runs on the thread and must come back within seconds by itself.
  explicit StatusThread(std::function<std::string()> make);
  ~StatusThread() { stop(); }

  /// Calls `answer` on the thread, once. After stop it is dropped instead.
  void ask(Answer answer);

  /// Lets a text that is being made finish, drops who still waits, and ends the thread.
  void stop();

  /// Bytes of the last text made; 0 before the first.
  std::size_t last_nbytes() const;

 private:
  void run();

  std::function<std::string()> make_;
  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::vector<Answer> waiting_;
  std::size_t last_nbytes_ = 0;
  bool stopped_ = false;
  std::thread thread_;
};

}  // namespace wcache

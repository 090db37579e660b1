#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ipc/connection.h"
#include "ipc/protocol.h"

namespace wcache {

/// A real wcached with the test as its launcher. Killed at the end if it still runs.
class WcachedProcess {
 public:
  explicit WcachedProcess(std::vector<std::string> arguments) {
    auto ends = Connection::pair();
    if (!ends) throw std::runtime_error(ends.error().message);
    const char* directory = std::getenv("WCACHE_BIN_DIR");
    if (directory == nullptr) throw std::runtime_error("WCACHE_BIN_DIR is not set");
    const std::string program = std::string(directory) + "/wcached";
    arguments.insert(arguments.begin(), program);
    arguments.insert(arguments.end(), {"--launcher-fd", std::to_string(ends->second.fd())});
    std::vector<char*> words;
    for (std::string& argument : arguments) words.push_back(argument.data());
    words.push_back(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
      fcntl(ends->second.fd(), F_SETFD, 0);
      execv(program.c_str(), words.data());
      _exit(127);
    }
    launcher_ = std::move(ends->first);
  }
  ~WcachedProcess() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  WcachedProcess(const WcachedProcess&) = delete;
  WcachedProcess& operator=(const WcachedProcess&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int number) const { ::kill(pid_, number); }
  void hang_up() { launcher_.reset(); }

  /// The first status from now on for which `wanted` holds; the last one before the end otherwise.
  RankStatus wait_for(const std::function<bool(const RankStatus&)>& wanted) {
    const Deadline deadline = deadline_in(std::chrono::seconds(20));
    while (launcher_) {
      auto message = launcher_->receive({}, deadline);
      if (!message || !*message) break;
      auto envelope = decode((*message)->bytes);
      if (!envelope || !std::holds_alternative<RankStatus>(envelope->body)) break;
      last_ = std::get<RankStatus>(envelope->body);
      if (wanted(last_)) break;
    }
    return last_;
  }
  RankStatus wait_for(State state) {
    return wait_for([state](const RankStatus& status) { return status.state == state; });
  }

  /// The exit code; 1000 + signal when it was killed; -1 when it does not end within 20 seconds.
  int wait() {
    for (int i = 0; i < 2000; ++i) {
      int status = 0;
      if (waitpid(pid_, &status, WNOHANG) == pid_) {
        pid_ = 0;
        return WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return -1;
  }

 private:
  pid_t pid_ = 0;
  std::optional<Connection> launcher_;
  RankStatus last_;
};

}  // namespace wcache

#pragma once

#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ipc/client.h"
#include "ipc/listener.h"
#include "tests/unit/fs/part_of.h"
#include "tests/unit/ipc/temporary_directory.h"

namespace wcache::test {

/// A daemon's public socket as the readers of a part see it: copies bytes of an entry on request, or does
/// not.
class ReadingDaemon {
 public:
  enum class Mode {
    serve,
    hold,     ///< says nothing until the mode changes
    hang_up,  ///< in place of an answer
    garbage,  ///< an answer that is no message
    stray,    ///< an answer of another kind
    little,   ///< says that fewer bytes were copied
    refuse,   ///< an ErrorReply
    silent,   ///< not even an answer to Hello
  };

  explicit ReadingDaemon(TestEntry entry) : entry_(std::move(entry)) {
    listener_.emplace(*Listener::bind(*SocketLock::take(socket())));
    thread_ = std::thread([this] { accept(); });
  }
  ~ReadingDaemon() { end(); }

  /// As a daemon that is killed: the socket and every connection go.
  void end() {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
      changed_.notify_all();
    }
    if (thread_.joinable()) thread_.join();
    for (std::thread& thread : std::exchange(threads_, {})) thread.join();
    listener_.reset();
  }

  void set(Mode mode) {
    const std::lock_guard lock(mutex_);
    mode_ = mode;
    changed_.notify_all();
  }
  /// Until `count` requests wait for an answer at once; false when that does not come about.
  bool wait_asked(std::size_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(10), [&] { return asked_ == count; });
  }
  std::size_t connections() {
    const std::lock_guard lock(mutex_);
    return connections_;
  }

  const TestEntry& entry() const { return entry_; }
  std::string socket() const { return dir_.file("wcache_x.sock"); }
  std::shared_ptr<const Part> part() const {
    Result<std::shared_ptr<const Part>> part =
        Part::make(attachment_of(entry_), getpid(), socket(), quiet_log());
    if (!part) std::abort();
    return *part;
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kWait{10};

  bool ended() {
    const std::lock_guard lock(mutex_);
    return ended_;
  }

  void accept() {
    while (!ended()) {
      pollfd fd{listener_->fd(), POLLIN, 0};
      if (poll(&fd, 1, 5) <= 0) continue;
      auto connection = listener_->accept();
      if (!connection || !*connection) continue;
      threads_.emplace_back([this, c = std::move(**connection)]() mutable { talk(std::move(c)); });
    }
  }

  void talk(Connection connection) {
    {
      const std::lock_guard lock(mutex_);
      ++connections_;
    }
    while (!ended()) {
      Result<std::optional<Message>> message =
          connection.receive({kMaxMessageBytes, 1}, deadline_in(std::chrono::milliseconds(5)));
      if (!message && message.error().reason == Reason::timeout) continue;
      if (!message || !*message) break;
      const Result<Envelope> request = decode((*message)->bytes);
      if (!request || !answer(connection, *request, (*message)->fds)) break;
    }
    const std::lock_guard lock(mutex_);
    --connections_;
  }

  Mode wait_mode() {
    std::unique_lock lock(mutex_);
    ++asked_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return ended_ || (mode_ != Mode::hold && mode_ != Mode::silent); });
    --asked_;
    return ended_ ? Mode::hang_up : mode_;
  }
  Mode mode() {
    const std::lock_guard lock(mutex_);
    return mode_;
  }

  bool answer(Connection& connection, const Envelope& request, const std::vector<Fd>& fds) {
    const auto say = [&](Body body) {
      return send_message(connection, {request.id, std::move(body)}, deadline_in(kWait)).has_value();
    };
    if (std::holds_alternative<Hello>(request.body)) {
      if (mode() == Mode::silent) wait_mode();
      return say(HelloReply{kMaxProtocolVersion, static_cast<std::int32_t>(getpid())});
    }
    const auto& which = std::get<CopyRequest>(request.body);
    switch (wait_mode()) {
      case Mode::hang_up:
        return false;
      case Mode::garbage:
        return connection.send(std::vector<std::byte>(50, std::byte{7}), {}, deadline_in(kWait)).has_value();
      case Mode::stray:
        return say(EvictReply{});
      case Mode::little:
        return say(CopyReply{which.nbytes - 1});
      case Mode::refuse:
        return say(ErrorReply{Error{Reason::io, "the driver says 700"}});
      default:
        break;
    }
    const char* bytes = entry_.bytes.at(which.file).data() + which.offset;
    if (fds.size() != 1 || pwrite(fds[0].get(), bytes, which.nbytes, 0) != static_cast<ssize_t>(which.nbytes))
      return false;
    return say(CopyReply{which.nbytes});
  }

  TestEntry entry_;
  TemporaryDirectory dir_;
  std::optional<Listener> listener_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  Mode mode_ = Mode::serve;
  std::size_t asked_ = 0;
  std::size_t connections_ = 0;
  bool ended_ = false;
  std::vector<std::thread> threads_;  // of the accepting thread, until it has ended
  std::thread thread_;
};

/// A model whose weights are on a device.
inline TestEntry device_entry(std::vector<TestFile> files, TestDevice device = {}) {
  TestEntryOptions options;
  options.memfd = true;
  options.device = std::move(device);
  return make_test_entry(std::move(files), options);
}

}  // namespace wcache::test

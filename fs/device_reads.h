#pragma once

#include <spdlog/logger.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "core/fd.h"
#include "core/result.h"
#include "ipc/client.h"
#include "ipc/deadline.h"

namespace wcache {

/// Reads files that a daemon holds on a device, by asking the daemon: on a few threads, started on demand,
/// each with a connection and a piece of memory that the daemon writes to. Safe for concurrent use.
class DeviceReads {
 public:
  /// All bytes that were asked for, valid during the call; or why there are none.
  using Answer = std::function<void(Result<std::span<const std::byte>> bytes)>;

  /// `log` is borrowed. `wait`: the longest that a read may take, from when it is asked for.
  DeviceReads(std::string socket, spdlog::logger& log,
              std::chrono::milliseconds wait = std::chrono::seconds(30));
  ~DeviceReads();  ///< stops, and waits until everything is answered; on no thread of its own
  DeviceReads(const DeviceReads&) = delete;
  DeviceReads& operator=(const DeviceReads&) = delete;

  /// Calls `answer` once: on a thread of this, or from within the call when it is stopped. `answer` must not
  /// throw.
  void read(std::uint32_t file, std::uint64_t offset, std::size_t nbytes, Answer answer);

  /// The daemon is gone: what waits and whatever will be asked for is answered with not_running, soon. Waits
  /// for nothing.
  void stop();
  bool stopped() const;

 private:
  struct Job {
    std::uint32_t file = 0;
    std::uint64_t offset = 0;
    std::size_t nbytes = 0;
    Deadline deadline;
    Answer answer;
  };
  /// What a thread keeps from one read to the next.
  struct Desk {
    std::optional<Client> client;
    Fd memory;
    Mapping view;
    std::vector<std::byte> large;  // for reads beyond kMaxCopyNbytes
  };

  void work();
  std::optional<Job> next_job(Desk& desk);
  void serve(Desk& desk, const Job& job);
  Result<std::span<const std::byte>> fetch(Desk& desk, const Job& job);
  Status set_up(Desk& desk, Deadline deadline);
  Result<Connection> connect(const Desk& desk, Deadline deadline);
  void clear(Desk& desk);

  const std::string socket_;
  spdlog::logger& log_;
  const std::chrono::milliseconds wait_;
  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  std::map<const Desk*, Fd> connections_;  // duplicates, to be shut down at the end
  std::size_t idle_ = 0;
  bool stopped_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace wcache

#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <stop_token>
#include <thread>
#include <vector>

#include "core/fd.h"
#include "core/result.h"
#include "daemon/device_entry.h"

namespace wcache {

/// Whether bytes can be written to the start of `fd` without waiting for anything but memory: a file of a
/// tmpfs or a memfd, open for writing. Reason::invalid otherwise.
Status check_copy_target(int fd);

/// Copies bytes of an entry on a device into memory of who asks, on a few threads of its own with a buffer
/// each. Safe for concurrent use. The destructor waits for the copies under way and drops the others.
class Copier {
 public:
  struct Job {
    std::uint64_t session = 0;
    std::size_t image = 0;  ///< of the plan
    std::uint64_t offset = 0;
    std::uint32_t nbytes = 0;  ///< at most kMaxCopyNbytes
    Fd into;                   ///< written from its start on
    /// Called once on a thread of the copier, unless the job is dropped.
    std::function<void(Status)> done;
  };

  /// Borrows the entry. Threads start with the first job.
  Copier(DeviceEntry& entry, std::size_t threads) : entry_(entry), most_(threads) {}
  ~Copier();
  Copier(const Copier&) = delete;
  Copier& operator=(const Copier&) = delete;

  /// An error: there is no thread to do it, and `done` will not be called.
  Status run(Job job);

  /// Drops what `session` has waiting.
  void drop(std::uint64_t session);

 private:
  void work(const std::stop_token& stop);
  Status copy(const Job& job, std::vector<std::byte>& buffer);

  DeviceEntry& entry_;
  const std::size_t most_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable_any more_;
  std::deque<Job> jobs_;
  std::size_t idle_ = 0;
  std::vector<std::jthread> threads_;
};

}  // namespace wcache

#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "core/result.h"
#include "daemon/fill/disk.h"
#include "daemon/fill/fill.h"
#include "daemon/fill/read_plan.h"
#include "daemon/fill/sink.h"
#include "daemon/fill/sources.h"

namespace wcache {

/// What the workers of one fill share. Everything but the atomics and what `mutex` guards is constant while
/// they run.
struct FillWork {
  const ReadPlan& plan;
  Sources& sources;
  const FillOptions& options;
  std::stop_token stop;

  std::atomic<std::size_t> next_read = 0;
  std::atomic<std::uint64_t> filled = 0;
  std::atomic<bool> failed = false;

  std::mutex mutex = {};
  std::condition_variable worker_ended = {};  // with mutex
  std::size_t running = 0;                    // guarded by mutex
  std::optional<Error> error = {};            // guarded by mutex; the first one

  bool ending() const { return failed || stop.stop_requested(); }
  void fail_with(Error error);
};

/// One thread of a fill: keeps its queue full of reads taken from the common list, and hands its lane what
/// arrives.
class FillWorker {
 public:
  FillWorker(FillWork& work, std::unique_ptr<FillLane> lane, std::unique_ptr<ReadQueue> queue,
             unsigned depth);
  FillWorker(FillWorker&&) = default;

  /// Returns when the list is empty and everything is in place, or the fill is ending; with nothing in flight
  /// and the queue closed. An error goes to FillWork::error.
  void run();

 private:
  using Clock = std::chrono::steady_clock;

  struct Slot {
    const PlannedRead* read = nullptr;  // nullptr: free
    const DiskFile* file = nullptr;
    std::byte* into = nullptr;
    std::uint64_t begin = 0;  // where the read in flight begins, from the planned one's beginning
    std::uint64_t have = 0;   // bytes that have come, from there
    unsigned retries = 0;     // without a byte in between
    Clock::time_point started;
  };

  Status work_off();
  Status start_free();
  Result<bool> start_next(Slot& slot);
  Status reap();
  Status settle(std::chrono::milliseconds wait);
  Status submit(Slot& slot);
  Status handle(Slot& slot, std::int64_t result);
  Status retry(Slot& slot);
  Status no_more(Slot& slot, std::int64_t result);
  Status finish(Slot& slot);
  Status check_stall() const;
  void drain();
  std::string position(const Slot& slot) const;

  FillWork& work_;
  std::unique_ptr<FillLane> lane_;
  std::unique_ptr<ReadQueue> queue_;
  std::vector<Slot> slots_;
  std::size_t in_flight_ = 0;
  std::optional<std::size_t> held_back_;  // a read taken from the list that waits for memory
  Clock::time_point last_arrival_;
};

}  // namespace wcache

#include "daemon/fill/worker.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <exception>
#include <span>
#include <thread>
#include <utility>

namespace wcache {
namespace {

/// How soon a stop is noticed.
constexpr std::chrono::milliseconds kReapWait{50};
/// How soon memory that becomes free is used while reads are in flight.
constexpr std::chrono::milliseconds kSettleWait{2};
constexpr std::chrono::milliseconds kRetryPause{1};
constexpr unsigned kMostShortReads = 100;

}  // namespace

void FillWork::fail_with(Error first) {
  const std::lock_guard lock(mutex);
  if (!error) error = std::move(first);
  failed = true;
}

FillWorker::FillWorker(FillWork& work, std::unique_ptr<FillLane> lane, std::unique_ptr<ReadQueue> queue,
                       unsigned depth)
    : work_(work), lane_(std::move(lane)), queue_(std::move(queue)), slots_(depth) {}

void FillWorker::run() {
  try {
    if (auto s = work_off(); !s) work_.fail_with(s.error());
  } catch (const std::exception& e) {
    work_.fail_with(Error{Reason::internal, std::string("filling: ") + e.what()});
  }
  drain();
  queue_.reset();
  const std::lock_guard lock(work_.mutex);
  --work_.running;
  work_.worker_ended.notify_all();
}

Status FillWorker::work_off() {
  last_arrival_ = Clock::now();
  if (auto s = start_free(); !s) return s;
  // With every buffer of the lane pending nothing is in flight, and the work goes on all the same.
  while ((in_flight_ > 0 || lane_->pending()) && !work_.ending()) {
    if (auto s = in_flight_ > 0 ? reap() : settle(kReapWait); !s) return s;
    if (lane_->pending())
      if (auto s = settle(std::chrono::milliseconds(0)); !s) return s;
    if (auto s = start_free(); !s) return s;
    if (auto s = check_stall(); !s) return s;
  }
  return work_.ending() ? Status{} : lane_->finish();
}

Status FillWorker::start_free() {
  for (Slot& slot : slots_) {
    if (slot.read != nullptr) continue;
    const auto more = start_next(slot);
    if (!more) return fail(more.error());
    if (!*more) break;
  }
  return {};
}

Status FillWorker::reap() {
  std::array<ReadCompletion, 16> completions;
  const auto count = queue_->reap(completions, held_back_ && lane_->pending() ? kSettleWait : kReapWait);
  if (!count) return fail(count.error());
  in_flight_ -= *count;
  for (const ReadCompletion& completion : std::span(completions).first(*count))
    if (auto s = handle(slots_[completion.tag], completion.result); !s) return s;
  return {};
}

Status FillWorker::settle(std::chrono::milliseconds wait) {
  const auto placed = lane_->settle(wait);
  if (!placed) return fail(placed.error());
  if (*placed > 0) last_arrival_ = Clock::now();
  work_.filled += *placed;
  return {};
}

/// False when there is nothing to start, or no memory to start it with.
Result<bool> FillWorker::start_next(Slot& slot) {
  if (work_.ending()) return false;
  const std::size_t index = held_back_ ? *held_back_ : work_.next_read.fetch_add(1);
  if (index >= work_.plan.reads.size()) return false;
  const PlannedRead& read = work_.plan.reads[index];
  const auto into = lane_->take(read);
  if (!into) return fail(into.error());
  if (*into == nullptr) {
    held_back_ = index;
    return false;
  }
  held_back_.reset();
  slot.read = &read;
  slot.into = *into;
  slot.begin = slot.have = 0;
  slot.retries = 0;
  if (in_flight_ == 0) last_arrival_ = Clock::now();
  if (auto s = submit(slot); !s) return fail(s.error());
  return true;
}

Status FillWorker::submit(Slot& slot) {
  slot.file = work_.sources.file(slot.read->source);
  slot.started = Clock::now();
  const ReadRequest request{.file = slot.file,
                            .offset = slot.read->offset + slot.begin,
                            .into = {slot.into + slot.begin, slot.read->nbytes - slot.begin},
                            .tag = static_cast<std::uint64_t>(&slot - slots_.data())};
  if (auto s = queue_->submit(request); !s) return s;
  ++in_flight_;
  return {};
}

Status FillWorker::handle(Slot& slot, std::int64_t result) {
  if (result == -EINTR || result == -EAGAIN) return retry(slot);
  if (result == -EINVAL) {
    const auto buffered = work_.sources.make_buffered(slot.read->source, slot.file);
    if (!buffered) return fail(buffered.error());
    if (*buffered) return submit(slot);
  }
  if (result < 0) {
    Error error = errno_error("reading " + position(slot), static_cast<int>(-result));
    error.reason = Reason::io;
    return fail(std::move(error));
  }
  const std::uint64_t end = slot.begin + static_cast<std::uint64_t>(result);
  if (end <= slot.have) return no_more(slot, result);
  slot.have = end;
  slot.retries = 0;
  last_arrival_ = Clock::now();
  if (slot.have >= slot.read->needed) return finish(slot);
  slot.begin =
      slot.have / work_.sources.alignment(slot.read->source) * work_.sources.alignment(slot.read->source);
  return submit(slot);
}

Status FillWorker::retry(Slot& slot) {
  if (++slot.retries > 1) std::this_thread::sleep_for(kRetryPause);
  return submit(slot);
}

/// The end of the file, or a read shorter than what direct reads have to begin with again.
Status FillWorker::no_more(Slot& slot, std::int64_t result) {
  if (auto s = work_.sources.check_unchanged(slot.read->source); !s) {
    Error error = s.error();
    error.message += ", found at byte " + std::to_string(slot.read->offset + slot.have);
    return fail(std::move(error));
  }
  if (result > 0 && slot.retries < kMostShortReads) return retry(slot);
  return fail(Reason::io, "reading " + position(slot) + ": the file ends early, " +
                              std::to_string(slot.read->needed - slot.have) + " bytes are missing");
}

/// The slot is given new work before the bytes are hashed, so that the disk never waits for that.
Status FillWorker::finish(Slot& slot) {
  const PlannedRead& read = *slot.read;
  std::byte* const bytes = slot.into;
  slot.read = nullptr;
  if (auto s = start_next(slot); !s) return fail(s.error());
  const auto placed = lane_->land(read, bytes);
  if (!placed) return fail(placed.error());
  work_.filled += *placed;
  work_.sources.drop_cache(read.source, read.offset, read.nbytes);
  return {};
}

Status FillWorker::check_stall() const {
  const bool waits = in_flight_ > 0 || lane_->pending();
  if (!waits || Clock::now() - last_arrival_ < work_.options.stall_timeout) return {};
  const Slot* oldest = nullptr;
  for (const Slot& slot : slots_)
    if (slot.read != nullptr && (oldest == nullptr || slot.started < oldest->started)) oldest = &slot;
  const std::string seconds =
      std::to_string(std::chrono::duration_cast<std::chrono::seconds>(work_.options.stall_timeout).count());
  if (oldest == nullptr)
    return fail(Reason::timeout,
                "what was read does not reach the device: nothing moved for " + seconds + " s",
                "see whether the device answers (nvidia-smi, dmesg)");
  return fail(Reason::timeout, "reading " + position(*oldest) + ": nothing came for " + seconds + " s",
              "see whether the storage answers (dmesg, network mounts)");
}

void FillWorker::drain() {
  if (in_flight_ == 0) return;
  queue_->cancel();
  const auto deadline = Clock::now() + work_.options.drain_timeout;
  std::array<ReadCompletion, 16> completions;
  while (in_flight_ > 0 && Clock::now() < deadline) {
    const auto count = queue_->reap(completions, kReapWait);
    if (!count) break;
    in_flight_ -= *count;
  }
  if (in_flight_ == 0) return;
  // The kernel may still write into these buffers: they are never used again.
  for (const Slot& slot : slots_)
    if (slot.read != nullptr) lane_->forsake(slot.into);
  work_.fail_with(
      Error{Reason::timeout, std::to_string(in_flight_) + " reads did not end when they were cancelled"});
}

std::string FillWorker::position(const Slot& slot) const {
  return work_.sources.path(slot.read->source) + " at byte " + std::to_string(slot.read->offset + slot.have);
}

}  // namespace wcache

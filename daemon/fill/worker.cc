#include "daemon/fill/worker.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <exception>
#include <new>

#include <thread>
#include <utility>

namespace wcache {
namespace {

/// How soon a stop is noticed.
constexpr std::chrono::milliseconds kReapWait{50};
constexpr std::chrono::milliseconds kRetryPause{1};
constexpr std::size_t kMostBuffers = 8;
constexpr unsigned kMostShortReads = 100;

}  // namespace

void FillWork::fail_with(Error first) {
  const std::lock_guard lock(mutex);
  if (!error) error = std::move(first);
  failed = true;
}

FillWorker::FillWorker(FillWork& work, std::unique_ptr<ReadQueue> queue, unsigned depth)
    : work_(work), queue_(std::move(queue)), slots_(depth) {}

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
  for (Slot& slot : slots_)
    if (auto s = start_next(slot); !s) return fail(s.error());
  std::array<ReadCompletion, 16> completions;
  while (in_flight_ > 0 && !work_.ending()) {
    const auto count = queue_->reap(completions, kReapWait);
    if (!count) return fail(count.error());
    in_flight_ -= *count;
    for (const ReadCompletion& completion : std::span(completions).first(*count))
      if (auto s = handle(slots_[completion.tag], completion.result); !s) return s;
    for (Slot& slot : slots_)
      if (slot.read == nullptr)
        if (auto more = start_next(slot); !more || !*more) {
          if (!more) return fail(more.error());
          break;
        }
    if (auto s = check_stall(); !s) return s;
  }
  return {};
}

/// False when there is nothing to start, or no buffer to start it with.
Result<bool> FillWorker::start_next(Slot& slot) {
  if (work_.ending()) return false;
  const std::size_t index = held_back_ ? *held_back_ : work_.next_read.fetch_add(1);
  if (index >= work_.plan.reads.size()) return false;
  const PlannedRead& read = work_.plan.reads[index];
  if (!read.direct && !take_buffer(slot)) {
    held_back_ = index;
    return false;
  }
  held_back_.reset();
  slot.read = &read;
  const Landing& landing = work_.plan.landings[read.first_landing];
  slot.into = read.direct ? work_.images[landing.image].data() + landing.image_offset : slot.bounce.get();
  slot.begin = slot.have = 0;
  slot.retries = 0;
  if (in_flight_ == 0) last_arrival_ = Clock::now();
  if (auto s = submit(slot); !s) return fail(s.error());
  return true;
}

bool FillWorker::take_buffer(Slot& slot) {
  if (!spare_.empty()) {
    slot.bounce = std::move(spare_.back());
    spare_.pop_back();
    return true;
  }
  if (buffers_ == std::min(kMostBuffers, slots_.size())) return false;
  slot.bounce.reset(static_cast<std::byte*>(std::aligned_alloc(kMaxAlignment, kBounceNbytes)));
  if (!slot.bounce) throw std::bad_alloc();
  ++buffers_;
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
  // A direct read at the end of an image fills its last page.
  if (read.direct) std::memset(slot.into + read.needed, 0, read.nbytes - read.needed);
  Buffer bounce = std::move(slot.bounce);
  slot.read = nullptr;
  if (auto s = start_next(slot); !s) return fail(s.error());
  land(read, bounce.get());
  if (bounce) spare_.push_back(std::move(bounce));
  work_.sources.drop_cache(read.source, read.offset, read.nbytes);
  return {};
}

void FillWorker::land(const PlannedRead& read, const std::byte* bytes) {
  for (const Landing& landing : std::span(work_.plan.landings).subspan(read.first_landing, read.landings)) {
    if (!read.direct)
      std::memcpy(work_.images[landing.image].data() + landing.image_offset, bytes + landing.from,
                  landing.nbytes);
    work_.hasher.arrived(landing.image, landing.image_offset, landing.nbytes);
    work_.filled += landing.nbytes;
  }
}

Status FillWorker::check_stall() const {
  if (in_flight_ == 0 || Clock::now() - last_arrival_ < work_.options.stall_timeout) return {};
  const Slot* oldest = nullptr;
  for (const Slot& slot : slots_)
    if (slot.read != nullptr && (oldest == nullptr || slot.started < oldest->started)) oldest = &slot;
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(work_.options.stall_timeout);
  return fail(Reason::timeout,
              "reading " + position(*oldest) + ": nothing came for " + std::to_string(seconds.count()) + " s",
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
  for (Slot& slot : slots_) static_cast<void>(slot.bounce.release());
  work_.fail_with(
      Error{Reason::timeout, std::to_string(in_flight_) + " reads did not end when they were cancelled"});
}

std::string FillWorker::position(const Slot& slot) const {
  return work_.sources.path(slot.read->source) + " at byte " + std::to_string(slot.read->offset + slot.have);
}

}  // namespace wcache

#include "daemon/memory/cuda/timed_copy.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "daemon/memory/cuda/owned.h"
#include "daemon/memory/cuda/pinned.h"

namespace wcache {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::microseconds kPoll{50};
constexpr const char* kCopying = "copying from the device";

}  // namespace

struct TimedCopies::Way {
  static Result<std::unique_ptr<Way>> make(const CudaDriver& driver, std::uint64_t nbytes);

  PinnedMemory bounce;
  CudaOwned<CUevent> event;
  CudaOwned<CUstream> stream;  // after bounce: goes before it
  bool asked = false;          ///< the device may be writing into `bounce`
  bool recorded = false;       ///< `event` says when it has done so
};

Result<std::unique_ptr<TimedCopies::Way>> TimedCopies::Way::make(const CudaDriver& driver,
                                                                 std::uint64_t nbytes) {
  Result<PinnedMemory> bounce = PinnedMemory::create(driver, nbytes);
  if (!bounce) return fail(std::move(bounce.error()));
  Result<CudaOwned<CUevent>> event = make_event(driver);
  if (!event) return fail(std::move(event.error()));
  Result<CudaOwned<CUstream>> stream = make_stream(driver);
  if (!stream) return fail(std::move(stream.error()));
  return std::unique_ptr<Way>(new Way{std::move(*bounce), std::move(*event), std::move(*stream)});
}

TimedCopies::TimedCopies(const CudaDriver& driver, std::chrono::milliseconds patience)
    : driver_(driver), patience_(patience) {}

TimedCopies::~TimedCopies() = default;

Error TimedCopies::does_not_answer() const {
  return Error{Reason::timeout, "the device has not copied for " + std::to_string(patience_.count()) + " ms",
               "see whether the device answers (nvidia-smi, dmesg)"};
}

std::size_t TimedCopies::drop_those_done() {
  const std::lock_guard lock(mutex_);
  left_.remove_if([&](const std::unique_ptr<Way>& way) {
    return way->recorded && driver_.cuEventQuery(way->event.get()) == CUDA_SUCCESS;
  });
  return left_.size();
}

Status TimedCopies::copy(CUdeviceptr from, std::span<std::byte> out) {
  if (drop_those_done() >= kMostLeft) return fail(does_not_answer());
  Result<std::unique_ptr<Way>> way = Way::make(driver_, std::min<std::uint64_t>(out.size(), kAtOnce));
  if (!way) return fail(std::move(way.error()));
  while (!out.empty()) {
    const std::span<std::byte> some = out.first(std::min<std::size_t>(out.size(), kAtOnce));
    if (Status copied = copy_by(**way, from, some); !copied) {
      const std::lock_guard lock(mutex_);
      if ((*way)->asked) left_.push_back(std::move(*way));
      return copied;
    }
    from += some.size();
    out = out.subspan(some.size());
  }
  return {};
}

Status TimedCopies::copy_by(Way& way, CUdeviceptr from, std::span<std::byte> out) const {
  const CUresult queued = driver_.cuMemcpyDtoHAsync(way.bounce.data(), from, out.size(), way.stream.get());
  if (Status s = cuda_check(driver_, kCopying, queued); !s) return s;
  way.asked = true;
  way.recorded = false;
  if (Status s = wait(way); !s) return s;
  way.asked = false;
  std::memcpy(out.data(), way.bounce.data(), out.size());
  return {};
}

Status TimedCopies::wait(Way& way) const {
  const CUresult recorded = driver_.cuEventRecord(way.event.get(), way.stream.get());
  if (Status s = cuda_check(driver_, kCopying, recorded); !s) return s;
  way.recorded = true;
  const auto deadline = Clock::now() + patience_;
  CUresult passed = driver_.cuEventQuery(way.event.get());
  for (; passed == CUDA_ERROR_NOT_READY && Clock::now() < deadline;
       passed = driver_.cuEventQuery(way.event.get()))
    std::this_thread::sleep_for(kPoll);
  if (passed == CUDA_ERROR_NOT_READY) return fail(does_not_answer());
  return cuda_check(driver_, kCopying, passed);
}

}  // namespace wcache

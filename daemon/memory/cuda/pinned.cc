#include "daemon/memory/cuda/pinned.h"

#include <sys/mman.h>

#include <new>
#include <string>
#include <thread>
#include <utility>

#include "daemon/fill/read_plan.h"

namespace wcache {
namespace {

constexpr std::chrono::microseconds kPoll{50};

std::byte* aligned(std::byte* at) {
  const auto address = reinterpret_cast<std::uintptr_t>(at);
  return at + (kMaxAlignment - address % kMaxAlignment) % kMaxAlignment;
}

}  // namespace

Result<PinnedMemory> PinnedMemory::create(const CudaDriver& driver, std::uint64_t nbytes) {
  PinnedMemory pinned;
  pinned.driver_ = &driver;
  auto memory = Mapping::map(-1, nbytes + kMaxAlignment, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                             "pinned memory");
  if (!memory) return fail(memory.error());
  pinned.memory_ = std::move(*memory);
  std::byte* const begin = aligned(pinned.memory_.data());
  // Advice only: larger pages are pinned sooner.
  madvise(begin, nbytes, MADV_HUGEPAGE);
  if (auto s = cuda_check(driver, "pinning " + std::to_string(nbytes) + " bytes of host memory",
                          driver.cuMemHostRegister(begin, nbytes, CU_MEMHOSTREGISTER_PORTABLE),
                          "free memory of the host, or raise what a process may lock of it (ulimit -l, "
                          "LimitMEMLOCK= of its service)");
      !s)
    return fail(s.error());
  pinned.registered_ = {begin, [&driver](std::byte* at) { return driver.cuMemHostUnregister(at); }};
  return pinned;
}

Status PinnedMemory::close() {
  if (driver_ == nullptr) return {};
  if (auto s = cuda_check(*driver_, "letting go of pinned memory", registered_.close()); !s) return s;
  memory_.reset();
  return {};
}

void PinnedMemory::reset() {
  registered_.reset();
  memory_.reset();
}

void PinnedMemory::keep_pages() {
  registered_.reset();
  forget();
}

void PinnedMemory::forget() {
  registered_.forget();
  alignas(Mapping) std::byte kept[sizeof(Mapping)];
  new (kept) Mapping(std::move(memory_));  // whose destructor is never called
}

Result<CudaOwned<CUstream>> make_stream(const CudaDriver& driver) {
  CUstream stream = nullptr;
  if (auto s = cuda_check(driver, "making a stream", driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
      !s)
    return fail(s.error());
  return CudaOwned<CUstream>(stream, [&driver](CUstream own) { return driver.cuStreamDestroy(own); });
}

Result<CudaOwned<CUevent>> make_event(const CudaDriver& driver) {
  CUevent event = nullptr;
  if (auto s = cuda_check(driver, "making an event", driver.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
      !s)
    return fail(s.error());
  return CudaOwned<CUevent>(event, [&driver](CUevent own) { return driver.cuEventDestroy(own); });
}

CUresult wait_for_stream(const CudaDriver& driver, CUstream stream,
                         std::chrono::steady_clock::time_point deadline, const std::stop_token& stop) {
  for (;;) {
    const CUresult passed = driver.cuStreamQuery(stream);
    if (passed != CUDA_ERROR_NOT_READY || stop.stop_requested() ||
        std::chrono::steady_clock::now() >= deadline)
      return passed;
    std::this_thread::sleep_for(kPoll);
  }
}

CUresult drain(const CudaDriver& driver, CUstream stream, std::chrono::steady_clock::time_point deadline) {
  const CUresult passed = wait_for_stream(driver, stream, deadline);
  if (passed == CUDA_SUCCESS || passed == CUDA_ERROR_NOT_READY) return passed;
  return wait_for_stream(driver, stream, deadline);
}

}  // namespace wcache

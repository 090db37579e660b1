#include "daemon/memory/cuda/pinned.h"

#include <sys/mman.h>

#include <utility>

namespace wcache {

Result<PinnedMemory> PinnedMemory::create(const CudaDriver& driver, std::uint64_t nbytes) {
  PinnedMemory pinned;
  pinned.driver_ = &driver;
  auto memory =
      Mapping::map(-1, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, "pinned memory");
  if (!memory) return fail(memory.error());
  pinned.memory_ = std::move(*memory);
  // Advice only: larger pages are pinned sooner.
  madvise(pinned.data(), nbytes, MADV_HUGEPAGE);
  if (auto s = cuda_check(driver, "pinning " + std::to_string(nbytes) + " bytes of host memory",
                          driver.cuMemHostRegister(pinned.data(), nbytes, CU_MEMHOSTREGISTER_PORTABLE));
      !s)
    return fail(s.error());
  pinned.registered_ = {pinned.data(), [&driver](void* at) { return driver.cuMemHostUnregister(at); }};
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
  static_cast<void>(new Mapping(std::move(memory_)));
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

bool drain(const CudaDriver& driver, CUstream stream) {
  return driver.cuStreamSynchronize(stream) == CUDA_SUCCESS ||
         driver.cuStreamSynchronize(stream) == CUDA_SUCCESS;
}

}  // namespace wcache

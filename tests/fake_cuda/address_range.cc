#include <sys/mman.h>

#include <utility>

#include "tests/fake_cuda/memory.h"

namespace wcache::fake_cuda {

namespace {

constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

CUdeviceptr map_at(CUdeviceptr hint, std::size_t size, int more_flags) {
  void* address = mmap(reinterpret_cast<void*>(hint), size, PROT_NONE, kFlags | more_flags, -1, 0);
  return address == MAP_FAILED ? 0 : reinterpret_cast<CUdeviceptr>(address);
}

void unmap(CUdeviceptr address, std::size_t size) {
  if (size > 0) munmap(reinterpret_cast<void*>(address), size);
}

}  // namespace

AddressRange AddressRange::reserve(std::size_t size, std::size_t alignment, CUdeviceptr hint) {
  AddressRange range;
  if (size + alignment < size) return range;
  size = (size + 4095) / 4096 * 4096;
  if (hint != 0 && hint % alignment == 0) range.base_ = map_at(hint, size, MAP_FIXED_NOREPLACE);
  if (!range.base_) {
    const CUdeviceptr first = map_at(0, size + alignment, 0);
    if (!first) return range;
    range.base_ = (first + alignment - 1) / alignment * alignment;
    unmap(first, range.base_ - first);
    unmap(range.base_ + size, first + alignment - range.base_);
  }
  range.size_ = size;
  return range;
}

AddressRange::AddressRange(AddressRange&& other) noexcept
    : base_(std::exchange(other.base_, 0)), size_(std::exchange(other.size_, 0)) {}

AddressRange& AddressRange::operator=(AddressRange&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(size_, other.size_);
  return *this;
}

AddressRange::~AddressRange() {
  unmap(base_, size_);
}

}  // namespace wcache::fake_cuda

#pragma once

#include <cuda.h>

#include <functional>
#include <utility>

namespace wcache {

/// Something of the driver's that has to be given back. Move-only.
template <class T>
class CudaOwned {
 public:
  using Release = std::function<CUresult(T)>;

  CudaOwned() = default;
  CudaOwned(T value, Release release) : value_(value), release_(std::move(release)) {}
  CudaOwned(CudaOwned&& other) noexcept
      : value_(other.value_), release_(std::exchange(other.release_, nullptr)) {}
  CudaOwned& operator=(CudaOwned&& other) noexcept {
    if (this == &other) return *this;
    reset();
    value_ = other.value_;
    release_ = std::exchange(other.release_, nullptr);
    return *this;
  }
  CudaOwned(const CudaOwned&) = delete;
  CudaOwned& operator=(const CudaOwned&) = delete;
  ~CudaOwned() { reset(); }

  T get() const { return value_; }
  explicit operator bool() const { return release_ != nullptr; }

  /// Gives it back. After an error it is still owned.
  CUresult close() {
    const CUresult result = release_ ? release_(value_) : CUDA_SUCCESS;
    if (result == CUDA_SUCCESS) release_ = nullptr;
    return result;
  }

  /// Gives it back, whatever the driver says to that; a refusal is not taken at the first word.
  void reset() {
    if (close() != CUDA_SUCCESS) close();
    forget();
  }

  /// It is left to the driver for good.
  void forget() { release_ = nullptr; }

 private:
  T value_{};
  Release release_;
};

}  // namespace wcache

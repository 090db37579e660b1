#pragma once

#include <cuda.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>

#include "daemon/memory/cuda/driver.h"

namespace wcache::testing {

/// What goes wrong in a driver: one call, and from then on whatever is given back is refused at the first
/// word. One at a time in a process, since functions of a table know nothing else.
class Trouble {
 public:
  /// The `nth` call of all fails with `code`.
  static void begin(std::uint64_t nth, CUresult code) {
    const std::lock_guard lock(mutex);
    now = Trouble{nth, code};
  }
  /// Ends it; whether the call was reached.
  static bool end() {
    const std::lock_guard lock(mutex);
    const bool reached = now.nth_ > 0 && now.calls_ >= now.nth_;
    now = Trouble{};
    return reached;
  }
  static std::optional<CUresult> of(std::string_view function) {
    const std::lock_guard lock(mutex);
    return now.next(function);
  }

 private:
  Trouble() = default;
  Trouble(std::uint64_t nth, CUresult code) : nth_(nth), code_(code) {}

  static bool gives_back(std::string_view function) {
    for (const std::string_view name :
         {"cuDevicePrimaryCtxRelease", "cuCtxPushCurrent", "cuCtxPopCurrent", "cuMemFree", "cuMemRelease",
          "cuMemAddressFree", "cuMemUnmap", "cuMemHostUnregister", "cuStreamDestroy", "cuEventDestroy"})
      if (function == name) return true;
    return false;
  }

  std::optional<CUresult> next(std::string_view function) {
    if (nth_ == 0 || function.starts_with("cuGetError")) return std::nullopt;
    const std::uint64_t call = ++calls_;
    if (call == nth_) {
      if (gives_back(function)) ++later_[function];
      return code_;
    }
    if (call < nth_) return std::nullopt;
    const std::uint64_t later = ++later_[function];
    const bool fails = gives_back(function) ? later % 2 == 1 : function == "cuStreamQuery" && later == 1;
    return fails ? std::optional(code_) : std::nullopt;
  }

  static inline std::mutex mutex;
  static Trouble now;  // guarded by mutex

  std::uint64_t nth_ = 0;  // 0: nothing fails
  CUresult code_ = CUDA_SUCCESS;
  std::uint64_t calls_ = 0;
  std::map<std::string_view, std::uint64_t> later_;
};
inline Trouble Trouble::now;

template <class Tag, class... Arguments>
auto troubled(CUresult (*real)(Arguments...), const char* name) -> CUresult (*)(Arguments...) {
  static CUresult (*function)(Arguments...);
  static const char* function_name;
  function = real;
  function_name = name;
  return [](Arguments... arguments) {
    const std::optional<CUresult> failure = Trouble::of(function_name);
    return failure ? *failure : function(arguments...);
  };
}

/// The same driver, whose calls go through Trouble.
inline std::shared_ptr<const CudaDriver> troubled_driver(const CudaDriver& real) {
  auto driver = std::make_shared<CudaDriver>(real);
#define WCACHE_TROUBLED(name) driver->name = troubled<struct Tag##name>(real.name, #name);
  WCACHE_CUDA_FUNCTIONS(WCACHE_TROUBLED)
#undef WCACHE_TROUBLED
  return driver;
}

}  // namespace wcache::testing

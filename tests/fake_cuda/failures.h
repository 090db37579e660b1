#pragma once

#include <cuda.h>

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "tests/fake_cuda/functions.h"

namespace wcache::fake_cuda {

/// Failures to inject: `function:n=code`, several separated by commas. `function` is an exported name, or
/// `any`; `n` says which of its calls since the process began (or was reset), from 1, and `*` means each. The
/// call then gives `code` and does nothing.
class Failures {
 public:
  static std::optional<Failures> parse(std::string_view text);

  /// What the `calls`th call of `function`, which is the process's `all_calls`th call, is to give.
  std::optional<CUresult> of(Function function, std::uint64_t calls, std::uint64_t all_calls) const;

 private:
  struct Failure {
    std::optional<Function> function;  ///< none: any
    std::uint64_t call = 0;            ///< 0: each
    CUresult code = CUDA_SUCCESS;
  };
  static std::optional<Failure> parse_one(std::string_view text);

  std::vector<Failure> failures_;
};

std::optional<Function> function_named(std::string_view name);

}  // namespace wcache::fake_cuda

#include "tests/fake_cuda/failures.h"

#include <charconv>

namespace wcache::fake_cuda {

namespace {

template <class Number>
bool parse_positive(std::string_view text, Number& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size() && out > 0;
}

}  // namespace

std::optional<Function> function_named(std::string_view name) {
  for (std::size_t i = 0; i < kFunctions; ++i) {
    if (kFunctionNames[i] == name) return static_cast<Function>(i);
  }
  return std::nullopt;
}

std::optional<Failures> Failures::parse(std::string_view text) {
  Failures failures;
  while (!text.empty()) {
    const std::size_t comma = text.find(',');
    const std::optional<Failure> failure = parse_one(text.substr(0, comma));
    if (!failure) return std::nullopt;
    failures.failures_.push_back(*failure);
    text = comma == std::string_view::npos ? std::string_view() : text.substr(comma + 1);
  }
  return failures;
}

std::optional<Failures::Failure> Failures::parse_one(std::string_view text) {
  const std::size_t colon = text.find(':');
  const std::size_t equals = text.find('=');
  if (colon == std::string_view::npos || equals == std::string_view::npos || equals < colon)
    return std::nullopt;
  Failure failure;
  const std::string_view name = text.substr(0, colon);
  if (name != "any") {
    failure.function = function_named(name);
    if (!failure.function) return std::nullopt;
  }
  const std::string_view call = text.substr(colon + 1, equals - colon - 1);
  if (call != "*" && !parse_positive(call, failure.call)) return std::nullopt;
  int code = 0;
  if (!parse_positive(text.substr(equals + 1), code)) return std::nullopt;
  failure.code = static_cast<CUresult>(code);
  return failure;
}

std::optional<CUresult> Failures::of(Function function, std::uint64_t calls, std::uint64_t all_calls) const {
  for (const Failure& failure : failures_) {
    if (failure.function && *failure.function != function) continue;
    const std::uint64_t count = failure.function ? calls : all_calls;
    if (failure.call == 0 || failure.call == count) return failure.code;
  }
  return std::nullopt;
}

}  // namespace wcache::fake_cuda

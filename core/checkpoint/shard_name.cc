#include "core/checkpoint/shard_name.h"

#include <charconv>

namespace wcache {
namespace {

std::optional<std::uint32_t> number(std::string_view text) {
  std::uint32_t value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || code != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace

std::optional<std::uint32_t> shard_rank(std::string_view name) {
  constexpr std::string_view kStart = "model-rank-", kMiddle = "-part-", kEnd = ".safetensors";
  if (!name.starts_with(kStart) || !name.ends_with(kEnd)) return std::nullopt;
  name = name.substr(kStart.size(), name.size() - kStart.size() - kEnd.size());
  const std::size_t middle = name.find(kMiddle);
  if (middle == std::string_view::npos || !number(name.substr(middle + kMiddle.size()))) return std::nullopt;
  return number(name.substr(0, middle));
}

}  // namespace wcache

#include "fs/tensor_name.h"

#include <array>
#include <utility>

namespace wcache {
namespace {

constexpr std::size_t kNameMax = 255;  // NAME_MAX, bytes

constexpr std::array<std::pair<char, std::string_view>, 3> kEscapes{
    {{'/', "%2F"}, {'%', "%25"}, {'\0', "%00"}}};

std::string_view escape_of(char c) {
  for (const auto& [plain, escaped] : kEscapes)
    if (plain == c) return escaped;
  return {};
}

}  // namespace

std::optional<std::string> escape_tensor_name(std::string_view name) {
  if (name.empty()) return std::nullopt;
  if (name == ".") return "%2E";
  if (name == "..") return "%2E%2E";
  std::string out;
  out.reserve(name.size());
  for (const char c : name) {
    const std::string_view escaped = escape_of(c);
    if (escaped.empty())
      out.push_back(c);
    else
      out.append(escaped);
    if (out.size() > kNameMax) return std::nullopt;
  }
  return out;
}

std::optional<std::string> unescape_tensor_name(std::string_view file_name) {
  if (file_name == "%2E") return ".";
  if (file_name == "%2E%2E") return "..";
  std::string out;
  for (std::size_t i = 0; i < file_name.size(); ++i) {
    if (file_name[i] != '%') {
      out.push_back(file_name[i]);
      continue;
    }
    bool known = false;
    for (const auto& [plain, escaped] : kEscapes) {
      if (file_name.substr(i, escaped.size()) != escaped) continue;
      out.push_back(plain);
      i += escaped.size() - 1;
      known = true;
      break;
    }
    if (!known) return std::nullopt;
  }
  if (escape_tensor_name(out) != file_name) return std::nullopt;
  return out;
}

}  // namespace wcache

#include "core/format.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>

namespace wcache {
namespace {

constexpr std::string_view kUnits = "KMGT";

/// The power of two that a suffix stands for, or -1 for none that is known.
int shift_of(std::string_view suffix) {
  if (suffix.empty() || suffix == "B" || suffix == "b") return 0;
  const char unit = suffix[0] >= 'a' ? static_cast<char>(suffix[0] - 'a' + 'A') : suffix[0];
  const std::size_t index = kUnits.find(unit);
  const std::string_view rest = suffix.substr(1);
  if (index == std::string_view::npos || !(rest.empty() || rest == "iB" || rest == "B")) return -1;
  return 10 * (static_cast<int>(index) + 1);
}

/// Length of the UTF-8 sequence at the start of `text`, 0 when it is none (overlong forms and surrogates
/// included).
std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  const unsigned char second = byte(1);
  if ((first == 0xE0 && second < 0xA0) || (first == 0xED && second > 0x9F)) return 0;
  if ((first == 0xF0 && second < 0x90) || (first == 0xF4 && second > 0x8F)) return 0;
  return length;
}

bool is_control(std::string_view character) {
  const auto first = static_cast<unsigned char>(character[0]);
  if (character.size() == 1) return first < 0x20 || first == 0x7F;
  return first == 0xC2 && static_cast<unsigned char>(character[1]) < 0xA0;  // C1 controls
}

}  // namespace

Result<std::uint64_t> parse_size(std::string_view text, std::string_view key) {
  const auto bad = [&](std::string why) {
    return fail(Reason::invalid, "the size '" + printable(text) + "' " + why,
                "give a whole number of bytes, or one with K, M, G or T (binary), such as 24G",
                std::string(key));
  };
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc::result_out_of_range) return bad("is too large");
  if (error != std::errc()) return bad("is not a number");
  const int shift = shift_of(text.substr(static_cast<std::size_t>(end - text.data())));
  if (shift < 0) return bad("has an unknown unit");
  if (number == 0) return bad("is zero");
  if (number > (UINT64_MAX >> shift)) return bad("is too large");
  return number << shift;
}

std::string human_size(std::uint64_t nbytes) {
  if (nbytes < 1024) return std::to_string(nbytes) + " B";
  double value = static_cast<double>(nbytes);
  std::size_t unit = 0;
  for (value /= 1024; value >= 1023.95 && unit + 1 < kUnits.size(); value /= 1024) ++unit;
  std::array<char, 48> text{};
  std::snprintf(text.data(), text.size(), "%.1f %ciB", value, kUnits[unit]);
  return text.data();
}

std::string human_rate(double bytes_per_second) {
  const bool known = std::isfinite(bytes_per_second) && bytes_per_second > 0 && bytes_per_second < 1e18;
  return human_size(known ? static_cast<std::uint64_t>(bytes_per_second) : 0) + "/s";
}

std::string human_seconds(double seconds) {
  const auto all =
      static_cast<long long>(std::isfinite(seconds) ? std::fmin(std::fmax(seconds, 0), 1e12) : 0);
  struct Unit {
    long long seconds;
    const char* name;
  };
  constexpr std::array<Unit, 4> units = {{{86400, " d"}, {3600, " h"}, {60, " min"}, {1, " s"}}};
  for (std::size_t i = 0; i + 1 < units.size(); ++i) {
    if (all < units[i].seconds) continue;
    return std::to_string(all / units[i].seconds) + units[i].name + " " +
           std::to_string(all % units[i].seconds / units[i + 1].seconds) + units[i + 1].name;
  }
  return std::to_string(all) + " s";
}

std::string printable(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    if (length == 0 || is_control(text.substr(0, length))) {
      out += '?';
    } else {
      out += text.substr(0, length);
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return out;
}

}  // namespace wcache

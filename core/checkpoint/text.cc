#include "core/checkpoint/text.h"

#include <cstddef>

#include "core/format.h"

namespace wcache {
namespace {

constexpr std::size_t kLongest = 200;

bool continues_character(char c) {
  return (static_cast<unsigned char>(c) & 0xc0) == 0x80;
}

}  // namespace

std::string in_quotes(std::string_view name) {
  if (name.size() <= kLongest) return "'" + printable(name) + "'";
  std::size_t end = kLongest;
  while (end > kLongest - 3 && continues_character(name[end])) --end;
  return "'" + printable(name.substr(0, end)) + "...'";
}

}  // namespace wcache

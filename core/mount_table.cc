#include "core/mount_table.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <optional>

#include "core/fd.h"

namespace wcache {
namespace {

bool is_octal(char c) {
  return c >= '0' && c <= '7';
}

/// mountinfo writes space, tab, newline and backslash as \ooo.
std::string unescape(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool escaped = text[i] == '\\' && i + 3 < text.size() && is_octal(text[i + 1]) &&
                         is_octal(text[i + 2]) && is_octal(text[i + 3]);
    if (!escaped) {
      out += text[i];
      continue;
    }
    out += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + (text[i + 3] - '0'));
    i += 3;
  }
  return out;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

bool parse_number(std::string_view text, int& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size();
}

/// id parent major:minor root path options [optional...] - type source super-options
std::optional<MountEntry> parse_line(std::string_view line) {
  const std::vector<std::string_view> fields = split(line, ' ');
  std::size_t dash = 6;
  while (dash < fields.size() && fields[dash] != "-") ++dash;
  MountEntry entry;
  if (dash + 2 >= fields.size() || !parse_number(fields[0], entry.id) ||
      !parse_number(fields[1], entry.parent))
    return std::nullopt;
  entry.device = fields[2];
  entry.path = unescape(fields[4]);
  entry.options = fields[5];
  entry.type = unescape(fields[dash + 1]);
  entry.source = unescape(fields[dash + 2]);
  entry.root = unescape(fields[3]);
  if (dash + 3 < fields.size()) entry.super_options = fields[dash + 3];
  return entry;
}

}  // namespace

std::vector<MountEntry> parse_mount_table(std::string_view mountinfo) {
  std::vector<MountEntry> table;
  for (const std::string_view line : split(mountinfo, '\n')) {
    if (std::optional<MountEntry> entry = parse_line(line)) table.push_back(std::move(*entry));
  }
  return table;
}

Result<std::vector<MountEntry>> read_mount_table() {
  constexpr const char* kPath = "/proc/self/mountinfo";
  const Result<Fd> file = open_file(kPath, O_RDONLY);
  if (!file) return fail(file.error());
  std::string text;
  std::array<char, 16384> buffer;
  for (;;) {
    const ssize_t got = read(file->get(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return fail_errno(std::string("reading ") + kPath, errno);
    if (got == 0) break;
    text.append(buffer.data(), static_cast<std::size_t>(got));
  }
  return parse_mount_table(text);
}

const MountEntry* mount_at(const std::vector<MountEntry>& table, std::string_view path) {
  const auto last = std::find_if(table.rbegin(), table.rend(), [&](const MountEntry& entry) { return entry.path == path; });
  return last == table.rend() ? nullptr : &*last;
}

}  // namespace wcache

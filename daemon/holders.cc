#include "daemon/holders.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <memory>
#include <optional>
#include <string_view>

#include "core/fd.h"

namespace wcache {
namespace {

constexpr std::size_t kMaxCommand = 200;

/// One word of `line`, which is cut off.
std::string_view next_word(std::string_view& line) {
  const std::size_t begin = std::min(line.find_first_not_of(' '), line.size());
  const std::size_t end = std::min(line.find(' ', begin), line.size());
  const std::string_view word = line.substr(begin, end - begin);
  line.remove_prefix(end);
  return word;
}

template <class Number>
bool parse(std::string_view text, int base, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, base);
  return error == std::errc{} && end == text.data() + text.size();
}

/// "begin-end perms offset major:minor inode path", numbers in hex but the inode (proc(5)).
bool is_wanted(std::string_view line, const MappingSearch& search) {
  next_word(line);
  next_word(line);
  next_word(line);
  const std::string_view device = next_word(line);
  const std::string_view inode = next_word(line);
  const std::size_t colon = device.find(':');
  unsigned major = 0;
  unsigned minor = 0;
  std::uint64_t number = 0;
  if (colon == std::string_view::npos || !parse(device.substr(0, colon), 16, major) ||
      !parse(device.substr(colon + 1), 16, minor) || !parse(inode, 10, number))
    return false;
  if (search.images.contains({makedev(major, minor), number})) return true;
  return !search.path_part.empty() && line.find(search.path_part) != std::string_view::npos;
}

/// Whether a file of maps has a wanted line; nullopt when it cannot be read. A process that is gone has none.
std::optional<bool> maps_has_wanted(const std::string& path, const MappingSearch& search) {
  const int opened = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (opened < 0) return errno == ENOENT || errno == ESRCH ? std::optional(false) : std::nullopt;
  const Fd file = Fd::adopt(opened);
  std::string rest;
  std::array<char, 1 << 16> buffer;
  for (;;) {
    const ssize_t n = read(file.get(), buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno == ESRCH ? std::optional(false) : std::nullopt;
    if (n == 0) return false;
    rest.append(buffer.data(), static_cast<std::size_t>(n));
    std::size_t begin = 0;
    for (std::size_t end; (end = rest.find('\n', begin)) != std::string::npos; begin = end + 1)
      if (is_wanted(std::string_view(rest).substr(begin, end - begin), search)) return true;
    rest.erase(0, begin);
  }
}

std::string first_bytes(const std::string& path) {
  const Fd file = Fd::adopt(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::array<char, kMaxCommand> buffer{};
  const ssize_t n = file ? read(file.get(), buffer.data(), buffer.size()) : -1;
  return n > 0 ? std::string(buffer.data(), static_cast<std::size_t>(n)) : std::string();
}

}  // namespace

std::string command_of(const std::string& proc, pid_t pid) {
  const std::string directory = proc + "/" + std::to_string(pid);
  std::string command = first_bytes(directory + "/cmdline");
  if (command.empty()) command = first_bytes(directory + "/comm");
  while (!command.empty() && (command.back() == '\0' || command.back() == '\n')) command.pop_back();
  for (char& c : command)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  return command;
}

MappingScan scan_mappings(const std::string& proc, const MappingSearch& search) {
  MappingScan scan;
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(opendir(proc.c_str()), closedir);
  if (!directory) return {{}, false};
  while (const dirent* item = readdir(directory.get())) {
    pid_t pid = 0;
    if (!parse(std::string_view(item->d_name), 10, pid) || search.except.contains(pid)) continue;
    const std::optional<bool> wanted = maps_has_wanted(proc + "/" + item->d_name + "/maps", search);
    if (!wanted) scan.complete = false;
    if (wanted.value_or(false)) scan.holders.push_back(Holder{pid, command_of(proc, pid), 0});
  }
  std::sort(scan.holders.begin(), scan.holders.end(),
            [](const Holder& a, const Holder& b) { return a.pid < b.pid; });
  return scan;
}

}  // namespace wcache

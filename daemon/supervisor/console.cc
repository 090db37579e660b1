#include "daemon/supervisor/console.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>

#include "core/format.h"

namespace wcache {
namespace {

constexpr std::chrono::milliseconds kRedraw{200};
constexpr std::chrono::seconds kPlain{5};

void write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

/// At most `columns` characters; counts UTF-8 sequences, not their width on the screen.
std::string clipped(std::string_view text, unsigned columns) {
  std::string out;
  unsigned count = 0;
  for (const char c : text) {
    const bool continues = (static_cast<unsigned char>(c) & 0xC0) == 0x80;
    if (!continues && ++count > columns) break;
    out += c;
  }
  return out;
}

bool same_but_for_bytes(const GroupProgress& a, const GroupProgress& b) {
  return a.role == b.role && a.name == b.name && a.state == b.state;
}

}  // namespace

std::string describe(const GroupProgress& progress) {
  std::string text = progress.role + " " + printable(progress.name) + ": " + progress.state;
  if (progress.nbytes == 0) return text;
  if (progress.filled == 0) return text + ", " + human_size(progress.nbytes);
  const std::uint64_t filled = std::min(progress.filled, progress.nbytes);
  text += ", " + human_size(filled) + " of " + human_size(progress.nbytes);
  text += " (" +
          std::to_string(
              static_cast<int>(100.0 * static_cast<double>(filled) / static_cast<double>(progress.nbytes))) +
          " %)";
  if (progress.rate < 1) return text;
  text += ", " + human_rate(progress.rate);
  return text + ", " + human_seconds(std::ceil(static_cast<double>(progress.nbytes - filled) / progress.rate)) +
         " left";
}

unsigned Console::columns_of(int fd) {
  if (isatty(fd) == 0) return 0;
  winsize size{};
  if (ioctl(fd, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

void Console::line(std::string_view text) {
  clear();
  write_all(output_fd_, std::string(text) + "\n");
}

void Console::note(std::string_view text) {
  error_line("wcache: " + std::string(text));
}

void Console::error_line(std::string_view text) {
  clear();
  write_all(error_fd_, std::string(text) + "\n");
}

void Console::show(const std::vector<GroupProgress>& groups, Clock::time_point now) {
  if (columns_ == 0) return print_plain(groups, now);
  const bool due = now - shown_at_ >= kRedraw || groups.size() != shown_.size();
  if (!due && drawn_ == groups.size()) return;
  clear();
  draw(groups);
  shown_ = groups;
  shown_at_ = now;
}

void Console::draw(const std::vector<GroupProgress>& groups) {
  std::string text;
  for (const GroupProgress& group : groups) text += clipped(describe(group), columns_ - 1) + "\n";
  write_all(error_fd_, text);
  drawn_ = groups.size();
}

void Console::clear() {
  std::string text;
  for (; drawn_ > 0; --drawn_) text += "\x1b[1A\x1b[2K";
  write_all(error_fd_, text);
}

void Console::print_plain(const std::vector<GroupProgress>& groups, Clock::time_point now) {
  const bool changed =
      !std::equal(groups.begin(), groups.end(), shown_.begin(), shown_.end(), same_but_for_bytes);
  const bool due = now - shown_at_ >= kPlain && groups != shown_;
  if (!changed && !due) return;
  for (const GroupProgress& group : groups) {
    const bool fresh = std::none_of(shown_.begin(), shown_.end(),
                                    [&](const GroupProgress& old) { return same_but_for_bytes(old, group); });
    if (fresh || due) write_all(error_fd_, "wcache: " + describe(group) + "\n");
  }
  shown_ = groups;
  shown_at_ = now;
}

}  // namespace wcache

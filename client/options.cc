#include "client/options.h"

#include <unistd.h>

#include <cerrno>
#include <charconv>

#include "core/format.h"
#include "core/log.h"

namespace wcache {

Result<std::string> CommonOptions::run_dir_path(const RunDir::Environment& variable) const {
  if (!run_dir.empty()) return run_dir;
  return RunDir::default_path(geteuid(), variable);
}

Status CommonOptions::check() const {
  if (log_level.empty()) return {};
  const auto level = parse_log_level(log_level);
  if (level) return {};
  Error error = level.error();
  error.key = "--log-level";
  return fail(std::move(error));
}

void print(int fd, const std::string& text) {
  std::string_view rest = text;
  while (!rest.empty()) {
    const ssize_t written = write(fd, rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    rest.remove_prefix(static_cast<std::size_t>(written));
  }
}

std::string error_text(const Error& error) {
  std::string text =
      "wcache: " + std::string(to_string(error.reason)) + ": " + printable(error.message) + "\n";
  if (!error.hint.empty()) text += "wcache: hint: " + printable(error.hint) + "\n";
  return text;
}

Result<std::chrono::seconds> parse_seconds(const std::string& text, const std::string& key) {
  std::int64_t number = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  constexpr std::int64_t kMost = std::int64_t{10} * 365 * 86400;
  if (error != std::errc() || end != text.data() + text.size() || number < 0 || number > kMost)
    return fail(Reason::invalid, "'" + printable(text) + "' is not a number of seconds",
                "give a whole number, such as 600", key);
  return std::chrono::seconds(number);
}

}  // namespace wcache

#include "core/log.h"

#include <fcntl.h>
#include <poll.h>
#include <spdlog/sinks/base_sink.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <mutex>
#include <utility>
#include <vector>

#include "core/fd.h"

namespace wcache {
namespace {

using spdlog::level::level_enum;

constexpr std::array<std::pair<std::string_view, level_enum>, 6> kLevels{{{"trace", level_enum::trace},
                                                                          {"debug", level_enum::debug},
                                                                          {"info", level_enum::info},
                                                                          {"warning", level_enum::warn},
                                                                          {"error", level_enum::err},
                                                                          {"off", level_enum::off}}};
constexpr const char* kPattern = "%Y-%m-%d %H:%M:%S.%e %n[%P] %l: %v";
// How long a line waits for a reader of a full pipe before it is dropped.
constexpr int kPatienceMs = 100;
// What a pipe that polls as writable takes without blocking.
constexpr std::size_t kSlice = 4096;

void write_line(int fd, std::string_view line) {
  while (!line.empty()) {
    pollfd ready{fd, POLLOUT, 0};
    if (poll(&ready, 1, kPatienceMs) == 0) return;
    const ssize_t n = write(fd, line.data(), std::min(line.size(), kSlice));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return;
    line.remove_prefix(static_cast<std::size_t>(n));
  }
}

/// spdlog's own file sinks open without close-on-exec.
class FdSink : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit FdSink(int borrowed) : fd_(borrowed) {}
  explicit FdSink(Fd owned) : fd_(owned.get()), owned_(std::move(owned)) {}

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    const std::size_t end = line.size() > 0 ? line.size() - 1 : 0;
    for (std::size_t i = 0; i < end; ++i)
      if (const auto byte = static_cast<unsigned char>(line[i]); byte < 0x20 || byte == 0x7f) line[i] = '?';
    write_line(fd_, {line.data(), line.size()});
  }
  void flush_() override {}

 private:
  int fd_;
  Fd owned_;
};

}  // namespace

Result<level_enum> parse_log_level(std::string_view word) {
  std::string words;
  for (const auto& [name, level] : kLevels) {
    if (name == word) return level;
    words += (words.empty() ? "" : ", ") + std::string(name);
  }
  return fail(Reason::invalid, "there is no log level '" + std::string(word) + "'", "levels are " + words,
              "log-level");
}

Result<std::shared_ptr<spdlog::logger>> make_logger(const LogOptions& options) {
  std::vector<spdlog::sink_ptr> sinks;
  if (options.stream >= 0) sinks.push_back(std::make_shared<FdSink>(options.stream));
  if (!options.file.empty()) {
    Result<Fd> file = open_file(options.file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW, 0600);
    if (!file) return fail(file.error());
    sinks.push_back(std::make_shared<FdSink>(std::move(*file)));
  }
  auto logger = std::make_shared<spdlog::logger>(options.name, sinks.begin(), sinks.end());
  logger->set_pattern(kPattern);
  logger->set_level(options.level);
  return logger;
}

}  // namespace wcache

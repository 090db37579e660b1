#pragma once

#include <spdlog/logger.h>

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "core/result.h"

namespace wcache {

/// The words of --log-level: trace, debug, info, warning, error, off. Reason::invalid for any other.
Result<spdlog::level::level_enum> parse_log_level(std::string_view word);

struct LogOptions {
  std::string name;  ///< of the program; each line begins with time, name and pid
  spdlog::level::level_enum level = spdlog::level::info;
  int stream = 2;              ///< borrowed descriptor for the lines; -1: none
  std::filesystem::path file;  ///< appended to as well, made with mode 0600; empty: none
};

/// A logger of its own (spdlog's registry does not know it), safe for concurrent use. One write(2) per line
/// of up to 4096 bytes, so that lines of several processes do not mix; control characters of a message are
/// shown as '?'. A line that cannot be written within 100 ms is lost silently: logging neither fails nor
/// blocks. Errors name the file.
Result<std::shared_ptr<spdlog::logger>> make_logger(const LogOptions& options);

}  // namespace wcache

#pragma once

#include <spdlog/common.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.h"

namespace wcache {

/// What a command line of wcachefs asks for.
struct Options {
  std::string directory;  ///< the mount point
  std::optional<std::string> run_dir;
  bool allow_other = false;
  bool passthrough = true;
  bool foreground = false;
  spdlog::level::level_enum log_level = spdlog::level::info;
};

/// A command line that ends at once: text for standard output (--help, --version).
struct OptionsText {
  std::string text;
};

struct ParsedOptions {
  Options options;
  std::optional<OptionsText> text;  ///< when set, print it and exit 0
};

/// `arguments` without the program's name. Both `wcachefs DIR` and the form that mount(8) uses, `wcachefs
/// wcache DIR -o rw,…`. Options of mount(8) that the kernel or mount(8) itself handles are accepted, since an
/// fstab line has them.
Result<ParsedOptions> parse_options(const std::vector<std::string>& arguments);

}  // namespace wcache

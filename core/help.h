#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace wcache {

/// Help in one layout whatever the version of CLI11: usage, description, arguments, options, commands. Long
/// texts are wrapped at 80 columns; a test reads it and compares it with the man page.
class HelpFormatter : public CLI::FormatterBase {
 public:
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override;
};

/// The option or argument that a parse error speaks of, or "".
std::string key_of(const CLI::ParseError& error);

}  // namespace wcache

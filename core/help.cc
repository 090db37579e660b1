#include "core/help.h"

#include <sstream>
#include <vector>

namespace wcache {
namespace {

constexpr std::size_t kWidth = 80;
constexpr std::size_t kColumn = 26;  // where descriptions begin

/// `line` and then `text`, wrapped, with continuation lines that begin at `column`.
std::string wrapped(std::string line, const std::string& text, std::size_t column) {
  std::string out;
  std::istringstream words(text);
  bool first = true;
  for (std::string word; words >> word;) {
    if (!first && line.size() + 1 + word.size() > kWidth) {
      out += line + "\n";
      line.assign(column, ' ');
      first = true;
    }
    line += (first ? "" : " ") + word;
    first = false;
  }
  return out + line + "\n";
}

std::string row(const std::string& head, const std::string& text) {
  std::string line = "  " + head;
  std::string out;
  if (line.size() + 2 > kColumn) {
    out = line + "\n";
    line.clear();
  }
  line.resize(kColumn, ' ');
  if (text.find('\n') == std::string::npos) return out + wrapped(line, text, kColumn);
  std::istringstream lines(text);  // laid out already
  for (std::string part; std::getline(lines, part); line.assign(kColumn, ' ')) out += line + part + "\n";
  return out;
}

std::string head_of(const CLI::Option& option) {
  std::string names;
  for (const std::string& name : option.get_snames()) names += (names.empty() ? "-" : ", -") + name;
  for (const std::string& name : option.get_lnames()) names += (names.empty() ? "--" : ", --") + name;
  if (option.get_type_size() != 0) names += " " + option.get_type_name();
  return names;
}

std::string first_sentence(const std::string& text) {
  const std::size_t end = text.find(". ");
  return end == std::string::npos ? text : text.substr(0, end + 1);
}

bool visible(const CLI::Option& option) {
  return !option.get_group().empty();
}

std::string arguments_of(const CLI::App& app) {
  std::string text;
  for (const CLI::Option* option : app.get_options({})) {
    if (!option->get_positional() && option->get_required()) text += " " + head_of(*option);
  }
  for (const CLI::Option* option : app.get_options({})) {
    if (!option->get_positional() || !visible(*option)) continue;
    const std::string name = option->get_type_name();
    text += option->get_required() ? " " + name : " [" + name + "]";
  }
  return text;
}

}  // namespace

std::string HelpFormatter::make_help(const CLI::App* app, std::string name, CLI::AppFormatMode) const {
  const CLI::App* parent = app->get_parent();
  const auto commands = app->get_subcommands([](const CLI::App*) { return true; });
  std::string out = "usage: " + (parent == nullptr ? name : parent->get_name() + " " + app->get_name());
  out += (commands.empty() ? "" : " COMMAND") + arguments_of(*app) + " [OPTIONS]\n\n" +
         wrapped("", app->get_description(), 0);
  std::string arguments, options;
  for (const CLI::Option* option : app->get_options({})) {
    if (!visible(*option)) continue;
    if (option->get_positional()) {
      arguments += row(option->get_type_name(), option->get_description());
    } else {
      options += row(head_of(*option), option->get_description());
    }
  }
  if (!arguments.empty()) out += "\narguments:\n" + arguments;
  if (!commands.empty()) {
    out += "\ncommands:\n";
    for (const CLI::App* command : commands)
      out += row(command->get_name(), first_sentence(command->get_description()));
  }
  if (!options.empty()) out += "\noptions:\n" + options;
  return out;
}

std::string key_of(const CLI::ParseError& error) {
  const std::string text = error.what();
  const std::size_t begin = text.find("--");
  if (begin == std::string::npos) return {};
  const std::size_t end = text.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-", begin);
  return text.substr(begin, end == std::string::npos ? end : end - begin);
}

}  // namespace wcache

#include "fs/options.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <array>
#include <memory>

#include "core/help.h"
#include "core/log.h"
#include "core/version.h"

namespace wcache {
namespace {

constexpr std::string_view kOptionsHelp =
    R"(Comma-separated, and may be repeated:
run_dir=DIR      where the daemons' sockets are. Default:
                 $WCACHE_RUN_DIR, else /run/wcache for root,
                 else $XDG_RUNTIME_DIR/wcache
allow_other      let other users in; without it they get
                 EACCES
no_passthrough   answer reads from this process though the
                 kernel could go straight to the memory: to
                 compare, and where it misbehaves
log_level=LEVEL  trace, debug, info (default), warning,
                 error or off)";

// Options of an fstab line that mount(8) handles itself or passes on to every file system.
constexpr std::array<std::string_view, 27> kMountOptions{
    "rw",       "ro",         "suid",       "nosuid",   "dev",
    "nodev",    "exec",       "noexec",     "auto",     "noauto",
    "user",     "nouser",     "users",      "nofail",   "_netdev",
    "defaults", "sync",       "async",      "atime",    "noatime",
    "relatime", "norelatime", "nodiratime", "diratime", "default_permissions",
    "group",    "owner"};

bool is_mount_option(std::string_view word) {
  if (word.starts_with("x-") || word.starts_with("X-") || word.starts_with("comment=")) return true;
  return std::find(kMountOptions.begin(), kMountOptions.end(), word) != kMountOptions.end();
}

Status apply_option(std::string_view word, Options& options) {
  constexpr std::string_view kRunDir = "run_dir=";
  constexpr std::string_view kLogLevel = "log_level=";
  if (word.empty() || is_mount_option(word)) return {};
  if (word == "allow_other") {
    options.allow_other = true;
  } else if (word == "no_passthrough") {
    options.passthrough = false;
  } else if (word.starts_with(kRunDir)) {
    options.run_dir = std::string(word.substr(kRunDir.size()));
  } else if (word.starts_with(kLogLevel)) {
    Result<spdlog::level::level_enum> level = parse_log_level(word.substr(kLogLevel.size()));
    if (!level) return fail(std::move(level.error()));
    options.log_level = *level;
  } else {
    return fail(Reason::invalid, "unknown option -o " + std::string(word),
                "wcachefs --help lists the options", std::string(word.substr(0, word.find('='))));
  }
  return {};
}

/// A backslash keeps the next character, as in mount(8): a run directory may hold a comma.
std::vector<std::string> split(std::string_view list) {
  std::vector<std::string> words(1);
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (list[i] == '\\' && i + 1 < list.size())
      words.back().push_back(list[++i]);
    else if (list[i] == ',')
      words.emplace_back();
    else
      words.back().push_back(list[i]);
  }
  return words;
}

}  // namespace

Result<ParsedOptions> parse_options(const std::vector<std::string>& arguments) {
  ParsedOptions parsed;
  std::vector<std::string> places;
  std::vector<std::string> lists;
  CLI::App app("Mounts the weight cache at DIR and shows what the daemons of the run directory serve.",
               "wcachefs");
  app.formatter(std::make_shared<HelpFormatter>());
  app.set_help_flag("--help", "Print this help.");
  app.set_version_flag("--version", "wcachefs " + std::string(version()), "Print the version.");
  app.add_option("DIR", places, "An empty directory; SOURCE DIR is understood too, as mount(8) calls.")
      ->type_name("DIR")
      ->expected(1, 2)
      ->required();
  app.add_option("-o", lists, std::string(kOptionsHelp))->type_name("OPTIONS")->allow_extra_args(false);
  app.add_flag("-f", parsed.options.foreground,
               "Stay in the foreground; without it the command ends once mounted.");
  try {
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
    app.parse(reversed);
  } catch (const CLI::CallForHelp&) {
    parsed.text = {app.help()};
    return parsed;
  } catch (const CLI::CallForVersion& version_text) {
    parsed.text = {std::string(version_text.what()) + "\n"};
    return parsed;
  } catch (const CLI::ParseError& error) {
    return fail(Reason::invalid, error.what(), "wcachefs --help lists the options");
  }
  parsed.options.directory = places.back();
  for (const std::string& list : lists)
    for (const std::string& word : split(list))
      if (Status applied = apply_option(word, parsed.options); !applied)
        return fail(std::move(applied.error()));
  return parsed;
}

}  // namespace wcache

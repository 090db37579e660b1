#include "daemon/supervisor/mount_record.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>
#include <system_error>

#include "core/fd.h"
#include "core/mount_table.h"

namespace wcache {
namespace {

constexpr const char* kOption = "--mount";
constexpr std::string_view kOurType = "fuse.wcachefs";

/// The words by which engines guess a draft's kind from its path.
constexpr std::array<std::string_view, 4> kDraftWords = {"eagle-", "eagle3", "dflash", "dspark"};

std::string lower_case(std::string text) {
  std::ranges::transform(text, text.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

/// Where the descriptor of an existing file leads.
Result<std::string> path_of(int fd) {
  std::error_code error;
  const std::filesystem::path path =
      std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd), error);
  if (error) return fail_errno("reading /proc/self/fd", error.value());
  return path.string();
}

}  // namespace

std::optional<MountRecord> read_mount_record(const std::string& file) {
  std::ifstream stream(file);
  const nlohmann::json json = nlohmann::json::parse(stream, nullptr, false);
  try {
    return MountRecord{json.at("path"), json.at("allow_other"), json.at("created")};
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

Status write_mount_record(const std::string& file, const MountRecord& record) {
  const nlohmann::json json = {
      {"path", record.path}, {"allow_other", record.allow_other}, {"created", record.created}};
  const std::string fresh = file + ".new";
  {
    std::ofstream stream(fresh, std::ios::trunc);
    stream << json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
    stream.close();
    if (!stream) return fail_errno("writing " + fresh, errno);
  }
  if (rename(fresh.c_str(), file.c_str()) != 0) return fail_errno("renaming " + fresh, errno);
  return {};
}

Status make_directories(const std::string& path, std::vector<std::string>& created) {
  std::vector<std::string> missing;
  for (std::filesystem::path at = path; !at.empty(); at = at.parent_path()) {
    if (mkdir(at.c_str(), 0755) == 0) {
      created.push_back(at.string());
      break;
    }
    if (errno == EEXIST) break;
    if (errno != ENOENT) return fail_errno("making the directory " + at.string(), errno);
    missing.push_back(at.string());
  }
  for (; !missing.empty(); missing.pop_back()) {
    const std::string& directory = missing.back();
    if (mkdir(directory.c_str(), 0755) != 0) return fail_errno("making the directory " + directory, errno);
    created.push_back(directory);
  }
  return {};
}

void remove_directories(const std::vector<std::string>& created) {
  for (auto directory = created.rbegin(); directory != created.rend(); ++directory) rmdir(directory->c_str());
}

Result<std::string> resolve_mount_path(const std::string& path) {
  std::error_code error;
  std::filesystem::path at = std::filesystem::absolute(path, error).lexically_normal();
  if (path.empty() || error) return fail(Reason::invalid, "the mount path is empty", {}, kOption);
  if (!at.has_filename()) at = at.parent_path();
  std::filesystem::path rest;
  for (;;) {
    const Result<Fd> fd = open_file(at.c_str(), O_PATH);
    if (fd) {
      const Result<std::string> real = path_of(fd->get());
      if (!real) return real;
      return rest.empty() ? *real : (std::filesystem::path(*real) / rest).string();
    }
    if (fd.error().errnum != ENOENT || at == at.parent_path()) return fail(fd.error());
    rest = rest.empty() ? at.filename() : at.filename() / rest;
    at = at.parent_path();
  }
}

Status check_mount_path(const std::string& path) {
  const std::string lower = lower_case(path);
  for (const std::string_view word : kDraftWords) {
    if (lower.find(word) == std::string::npos) continue;
    return fail(Reason::invalid, "the mount path " + path + " holds '" + std::string(word) + "'",
                "engines guess a draft's kind from that word in its path: choose another path", kOption);
  }
  const Result<std::vector<MountEntry>> table = read_mount_table();
  if (!table) return fail(table.error());
  if (const MountEntry* mount = mount_at(*table, path)) {
    if (mount->type == kOurType) return {};  // ours, alive or dead: wcachefs tells
    return fail(Reason::invalid, path + " is a mount of another file system (" + mount->type + ")",
                "choose another path, or unmount it first", kOption);
  }
  std::error_code error;
  const auto type = std::filesystem::status(path, error).type();
  if (type == std::filesystem::file_type::not_found) return {};
  if (type != std::filesystem::file_type::directory)
    return fail(Reason::invalid, "the mount path " + path + " is not a directory", {}, kOption);
  const bool empty = std::filesystem::is_empty(path, error);
  if (error) return fail_errno("looking into " + path, error.value());
  if (!empty)
    return fail(Reason::invalid, "the mount path " + path + " is a directory with files in it",
                "choose an empty or a new one", kOption);
  return {};
}

}  // namespace wcache

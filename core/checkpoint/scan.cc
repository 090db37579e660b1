#include "core/checkpoint/scan.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>
#include <system_error>
#include <utility>

#include "core/checkpoint/file_kind.h"
#include "core/checkpoint/text.h"

namespace wcache {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostFiles = 100'000;
constexpr std::size_t kDeepest = 32;

constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kSkipped{{
    {".git", "version control, no part of the model"},
    {".cache", "a download tool's bookkeeping, no part of the model"},
    {".wcache", "wcache's own directory"},
}};

std::string_view why_skipped(std::string_view name) {
  for (const auto& [skipped, why] : kSkipped)
    if (name == skipped) return why;
  return {};
}

std::string_view kind_of_special(mode_t mode) {
  if (S_ISFIFO(mode)) return "a FIFO, not a file";
  if (S_ISSOCK(mode)) return "a socket, not a file";
  return "a device, not a file";
}

Error corrupt(std::string message, std::string hint = {}) {
  return Error{Reason::corrupt, std::move(message), std::move(hint)};
}

/// What is wrong with a symbolic link that cannot be followed.
Error link_problem(const std::string& name, const fs::path& link, int errnum) {
  if (errnum == ELOOP) return corrupt(in_quotes(name) + " is a symbolic link that leads back to itself");
  if (errnum != ENOENT && errnum != ENOTDIR)
    return errno_error("following the symbolic link " + in_quotes(name), errnum);
  std::error_code ignored;
  const std::string target = fs::read_symlink(link, ignored).string();
  return corrupt(in_quotes(name) + " is a symbolic link to " + in_quotes(target) + ", which is not there",
                 "the download is incomplete or its cache was cleaned: download the model again");
}

bool is_within(const fs::path& path, const fs::path& root) {
  return std::mismatch(root.begin(), root.end(), path.begin(), path.end()).first == root.end();
}

class Scanner {
 public:
  explicit Scanner(const fs::path& root) : root_(root) {}

  Result<Scan> scan() {
    struct stat st {};
    if (stat(root_.c_str(), &st) != 0) return fail_errno("looking at " + in_quotes(root_.string()), errno);
    if (Status status = enter(root_, "", st); !status) return fail(std::move(status.error()));
    std::sort(scan_.files.begin(), scan_.files.end(),
              [](const FoundFile& a, const FoundFile& b) { return a.name < b.name; });
    return std::move(scan_);
  }

 private:
  /// `prefix` is the directory's name relative to the root, with a slash at its end.
  Status enter(const fs::path& directory, const std::string& prefix, const struct stat& st) {
    if (above_.size() >= kDeepest)
      return fail(Reason::invalid,
                  in_quotes(prefix) + " lies deeper than " + std::to_string(kDeepest) + " directories",
                  "is this a model's directory?", "MODEL");
    above_.emplace_back(st.st_dev, st.st_ino);
    std::error_code error;
    fs::directory_iterator at(directory, error);
    for (const fs::directory_iterator end; !error && at != end; at.increment(error))
      if (Status status = add(at->path(), prefix + at->path().filename().string()); !status) return status;
    above_.pop_back();
    if (error) return fail_errno("listing " + in_quotes(directory.string()), error.value());
    return {};
  }

  Status add(const fs::path& path, const std::string& name) {
    if (const std::string_view why = why_skipped(path.filename().string()); !why.empty()) {
      scan_.left_out.push_back({name, std::string(why)});
      return {};
    }
    if (scan_.files.size() >= kMostFiles)
      return fail(Reason::invalid,
                  in_quotes(root_.string()) + " holds more than " + std::to_string(kMostFiles) + " files",
                  "is this a model's directory?", "MODEL");
    struct stat st {};
    if (lstat(path.c_str(), &st) != 0) return fail_errno("looking at " + in_quotes(path.string()), errno);
    FoundFile file{name, path, std::nullopt, {}};
    const bool is_link = S_ISLNK(st.st_mode);
    if (is_link) {
      std::error_code error;
      if (stat(path.c_str(), &st) != 0)
        file.problem = link_problem(name, path, errno);
      else if (file.path = fs::canonical(path, error); error)
        file.problem = link_problem(name, path, error.value());
    }
    if (!file.problem && S_ISDIR(st.st_mode)) return add_directory(std::move(file), is_link, st);
    if (!file.problem && !S_ISREG(st.st_mode)) {
      file.special = kind_of_special(st.st_mode);
      file.problem = corrupt(in_quotes(name) + " is " + file.special);
    }
    scan_.files.push_back(std::move(file));
    return {};
  }

  Status add_directory(FoundFile file, bool is_link, const struct stat& st) {
    const FileKind kind = kind_of_name(file.name);
    if (kind == FileKind::safetensors || kind == FileKind::gguf) {
      file.problem = corrupt(in_quotes(file.name) + " is a directory where a weight file was expected");
      scan_.files.push_back(std::move(file));
      return {};
    }
    std::string why;
    if (is_link && !is_within(file.path, root_))
      why = "a symbolic link to a directory outside of the checkpoint";
    if (std::find(above_.begin(), above_.end(), std::pair(st.st_dev, st.st_ino)) != above_.end())
      why = "a symbolic link to a directory that it lies in";
    if (why.empty()) return enter(file.path, file.name + "/", st);
    scan_.left_out.push_back({file.name, why});
    return {};
  }

  const fs::path& root_;
  std::vector<std::pair<dev_t, ino_t>> above_;  ///< directories being listed, the root first
  Scan scan_;
};

}  // namespace

Result<Scan> scan_directory(const fs::path& root) {
  return Scanner(root).scan();
}

}  // namespace wcache

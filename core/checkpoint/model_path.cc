#include "core/checkpoint/model_path.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <system_error>
#include <vector>

#include "core/checkpoint/text.h"

namespace wcache {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kArgument = "MODEL";
constexpr std::string_view kRepository =
    "models--";  // a repository's folder in the hub cache: models--ORG--NAME

tl::unexpected<Error> invalid(std::string message, std::string hint) {
  return fail(Reason::invalid, std::move(message), std::move(hint), std::string(kArgument));
}

bool is_hub_word(std::string_view word) {
  const auto fits = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '-' ||
           c == '_' || c == '.';
  };
  return !word.empty() && word.front() != '.' && std::all_of(word.begin(), word.end(), fits);
}

/// ORG/NAME, where no directory ORG makes it a mistyped path.
bool looks_like_hub_id(std::string_view text) {
  const std::size_t slash = text.find('/');
  if (slash == std::string_view::npos) return false;
  std::error_code ignored;
  return is_hub_word(text.substr(0, slash)) && is_hub_word(text.substr(slash + 1)) &&
         !fs::exists(fs::path(text.substr(0, slash)), ignored);
}

tl::unexpected<Error> not_there(const std::string& text) {
  if (text.find("://") != std::string::npos)
    return invalid(in_quotes(text) + " is no local path", "download the model first and give its directory");
  if (looks_like_hub_id(text)) {
    return invalid(
        "there is no directory " + in_quotes(text) + "; it looks like a Hugging Face hub id",
        "download it first (hf download " + text + ") and give the snapshot directory that this prints");
  }
  return invalid(
      "there is no file or directory " + in_quotes(text),
      "give a local directory in Hugging Face layout, a hub cache snapshot or a single weight file");
}

tl::unexpected<Error> cannot_look(const std::string& text, int errnum) {
  if (errnum == ENOENT || errnum == ENOTDIR || errnum == ENAMETOOLONG) return not_there(text);
  if (errnum == ELOOP) return invalid(in_quotes(text) + " is a symbolic link that leads back to itself", "");
  Error error = errno_error("looking at " + in_quotes(text), errnum);
  error.key = kArgument;
  return fail(std::move(error));
}

/// Absolute, without "." and a slash at the end. ".." is left for the file system to resolve.
fs::path tidy(const fs::path& path) {
  std::error_code error;
  fs::path absolute = fs::absolute(path, error);
  if (error || std::find(absolute.begin(), absolute.end(), "..") != absolute.end())
    absolute = fs::canonical(path, error);
  absolute = absolute.lexically_normal();
  return absolute.has_filename() ? absolute : absolute.parent_path();
}

/// ".../models--ORG--NAME/snapshots/REVISION" -> "NAME"; empty for other paths.
std::string repository_name(const fs::path& directory) {
  const fs::path snapshots = directory.parent_path();
  const std::string repository = snapshots.parent_path().filename().string();
  if (snapshots.filename() != "snapshots" || !repository.starts_with(kRepository)) return {};
  return repository.substr(repository.rfind("--") + 2);
}

/// The folder of a whole repository was given: says which snapshot to give.
Status check_not_a_repository(const fs::path& root) {
  std::error_code ignored;
  const fs::path snapshots = root / "snapshots";
  if (!root.filename().string().starts_with(kRepository) || !fs::is_directory(snapshots, ignored)) return {};
  std::vector<std::string> found;
  for (fs::directory_iterator at(snapshots, ignored), end; !ignored && at != end; at.increment(ignored))
    found.push_back(at->path().string());
  const std::string give = found.size() == 1 ? found.front() : (snapshots / "REVISION").string();
  return invalid(in_quotes(root.string()) + " is a hub cache's folder of a repository, not a model directory",
                 "give one of its snapshots: " + give);
}

}  // namespace

Result<ModelPath> locate_model(const fs::path& model) {
  const std::string text = model.string();
  if (text.empty()) return invalid("the model's path is empty", "give a directory or a weight file");
  struct stat st {};
  if (stat(text.c_str(), &st) != 0) return cannot_look(text, errno);
  if (!S_ISDIR(st.st_mode) && !S_ISREG(st.st_mode))
    return invalid(in_quotes(text) + " is neither a directory nor a file",
                   "give a model's directory or a weight file");
  const fs::path given = tidy(model);
  ModelPath found;
  found.is_directory = S_ISDIR(st.st_mode);
  std::error_code error;
  const fs::path directory = fs::canonical(found.is_directory ? given : given.parent_path(), error);
  if (error) return cannot_look(text, error.value());
  found.root = found.is_directory ? directory : directory / given.filename();
  found.name = given.filename().string();
  if (!found.is_directory) return found;
  if (const std::string repository = repository_name(given); !repository.empty())
    found.name = repository;
  else if (const std::string resolved = repository_name(directory);
           !resolved.empty() && found.name == directory.filename())
    found.name = resolved;
  if (Status status = check_not_a_repository(directory); !status) return fail(std::move(status.error()));
  return found;
}

}  // namespace wcache

#include "core/checkpoint/disguise.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>

#include "core/fd.h"

namespace wcache {
namespace {

constexpr std::size_t kLookAt = 64;

struct Row {
  std::string_view start;  ///< lower case
  Disguise disguise;
};

constexpr std::string_view kDownloadAgain =
    "the download went wrong (not logged in, or no access?): download the file again";
constexpr Disguise kHtml{"an HTML page, not weights", kDownloadAgain};
constexpr std::array kRows{
    Row{"version https://git-lfs.github.com/spec/",
        {"a Git-LFS pointer, not the weights themselves",
         "run `git lfs pull` where it was cloned, or download the file again"}},
    Row{"<!doctype html", kHtml},
    Row{"<html", kHtml},
    Row{"<?xml", {"an XML page, not weights", kDownloadAgain}},
};

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

bool starts_with_ignoring_case(std::string_view text, std::string_view start) {
  return text.size() >= start.size() && std::equal(start.begin(), start.end(), text.begin(),
                                                   [](char want, char have) { return want == lower(have); });
}

}  // namespace

std::optional<Disguise> disguise_of(std::string_view first_bytes) {
  constexpr std::string_view kUtf8Mark = "\xef\xbb\xbf";
  if (first_bytes.starts_with(kUtf8Mark)) first_bytes.remove_prefix(kUtf8Mark.size());
  first_bytes.remove_prefix(std::min(first_bytes.find_first_not_of(" \t\r\n"), first_bytes.size()));
  for (const Row& row : kRows)
    if (starts_with_ignoring_case(first_bytes, row.start)) return row.disguise;
  return std::nullopt;
}

std::optional<Disguise> disguise_of(int fd, std::uint64_t file_nbytes) {
  std::array<char, kLookAt> bytes{};
  const std::size_t n = static_cast<std::size_t>(std::min<std::uint64_t>(file_nbytes, bytes.size()));
  if (!read_exact(fd, std::as_writable_bytes(std::span(bytes).first(n)), 0, "")) return std::nullopt;
  return disguise_of(std::string_view(bytes.data(), n));
}

}  // namespace wcache

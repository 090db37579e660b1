#include "core/checkpoint/weight_index.h"

#include <simdjson.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>

#include "core/checkpoint/text.h"
#include "core/fd.h"
#include "core/format.h"

namespace wcache {
namespace {

namespace dom = simdjson::dom;

constexpr std::uint64_t kLongestIndex = 256'000'000;

/// The name within the checkpoint, without "." parts; empty where it would leave it or is none.
std::string inside_name(std::string_view file) {
  const std::filesystem::path path = std::filesystem::path(file).lexically_normal();
  if (file.find('\0') != std::string_view::npos || path.is_absolute() || !path.has_filename() || path == ".")
    return {};
  return *path.begin() == ".." ? std::string() : path.string();
}

}  // namespace

Result<WeightIndex> read_weight_index(int fd, std::uint64_t file_nbytes, std::string_view name) {
  const auto bad = [&name](const std::string& what) {
    return fail(Reason::corrupt, printable(name) + ": " + what, "the index is damaged: download it again");
  };
  if (file_nbytes > kLongestIndex)
    return bad("an index of more than " + std::to_string(kLongestIndex) + " bytes");
  const auto n = static_cast<std::size_t>(file_nbytes);
  const std::unique_ptr<char[]> text(new char[n + simdjson::SIMDJSON_PADDING]());
  if (Status status = read_exact(fd, std::as_writable_bytes(std::span(text.get(), n)), 0, printable(name));
      !status)
    return fail(std::move(status.error()));
  dom::parser parser;
  dom::element root;
  if (const auto error = parser.parse(text.get(), n, false).get(root))
    return bad(std::string("not JSON: ") + simdjson::error_message(error));
  dom::object object, map;
  if (root.get_object().get(object)) return bad("not a JSON object");
  if (object["weight_map"].get_object().get(map)) return bad("weight_map is missing or not an object");
  WeightIndex index;
  index.name = name;
  for (const auto& [tensor, value] : map) {
    std::string_view file;
    if (value.get_string().get(file))
      return bad("weight_map: the file of tensor " + in_quotes(tensor) + " is not a string");
    std::string inside = inside_name(file);
    if (inside.empty())
      return bad("weight_map: tensor " + in_quotes(tensor) + " is in " + in_quotes(file) +
                 ", which is no file of the checkpoint");
    index.files.insert(inside);
    index.weight_map.emplace_back(tensor, std::move(inside));
  }
  if (index.weight_map.empty()) return bad("weight_map is empty");
  std::sort(index.weight_map.begin(), index.weight_map.end());
  const auto twice = std::adjacent_find(index.weight_map.begin(), index.weight_map.end(),
                                        [](const auto& a, const auto& b) { return a.first == b.first; });
  if (twice != index.weight_map.end())
    return bad("weight_map: tensor " + in_quotes(twice->first) + " is there twice");
  return index;
}

}  // namespace wcache

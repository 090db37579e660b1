#include "core/checkpoint/tensor_names.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>

#include "core/checkpoint/shard_name.h"
#include "core/checkpoint/text.h"
#include "core/format.h"

namespace wcache {
namespace {

/// One tensor of one file.
struct Row {
  std::string_view name;
  SourceFile* file = nullptr;
  TensorInfo* tensor = nullptr;
};

std::vector<Row> rows_of(std::vector<SourceFile>& files) {
  std::vector<Row> rows;
  for (SourceFile& file : files)
    for (TensorInfo& tensor : file.tensors) rows.push_back({tensor.name, &file, &tensor});
  std::sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) {
    return std::tie(a.name, a.file->name) < std::tie(b.name, b.file->name);
  });
  return rows;
}

bool may_share_names(const SourceFile& a, const SourceFile& b) {
  if (a.kind != FileKind::safetensors || b.kind != FileKind::safetensors) return true;
  const std::optional<std::uint32_t> rank_a = shard_rank(a.name), rank_b = shard_rank(b.name);
  return rank_a && rank_b && *rank_a != *rank_b;
}

/// The tensor's rows are of several files and no index says which is meant: the first keeps the name.
Status share(std::span<const Row> rows, const WeightIndex* index) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (may_share_names(*rows[j].file, *rows[i].file)) continue;
      return fail(Reason::corrupt,
                  "tensor " + in_quotes(rows[i].name) + " is in both " + printable(rows[j].file->name) +
                      " and " + printable(rows[i].file->name) + ", and " +
                      (index == nullptr ? "there is no index" : printable(index->name) + " does not say") +
                      " which is meant",
                  "remove the file that does not belong to the model, or add it to the index");
    }
    rows[i].tensor->shadowed = i > 0;
  }
  return {};
}

/// The index says that `file` holds the tensor of these rows.
Status decide(std::span<const Row> rows, const std::string& tensor, const std::string& file,
              const WeightIndex& index) {
  bool found = false;
  for (const Row& row : rows) found |= row.file->name == file;
  if (!found) {
    std::string message = printable(index.name) + ": tensor " + in_quotes(tensor) + " is said to be in " +
                          printable(file) + ", which does not hold it";
    if (!rows.empty()) message += "; " + printable(rows.front().file->name) + " does";
    return fail(Reason::corrupt, std::move(message),
                "index and weights do not belong together: download both again");
  }
  for (const Row& row : rows) row.tensor->shadowed = row.file->name != file;
  return {};
}

}  // namespace

Status settle_tensor_names(std::vector<SourceFile>& files, const WeightIndex* index) {
  std::set<std::string_view> opaque;  // files whose tensors we cannot know
  for (const SourceFile& file : files)
    if (file.kind == FileKind::opaque) opaque.insert(file.name);
  const std::vector<Row> rows = rows_of(files);
  std::size_t at = 0, entry = 0;
  const std::size_t entries = index == nullptr ? 0 : index->weight_map.size();
  while (at < rows.size() || entry < entries) {
    const bool in_index =
        entry < entries && (at == rows.size() || index->weight_map[entry].first <= rows[at].name);
    const std::string_view name = in_index ? std::string_view(index->weight_map[entry].first) : rows[at].name;
    const std::size_t first = at;
    while (at < rows.size() && rows[at].name == name) ++at;
    const std::span<const Row> same(rows.data() + first, at - first);
    Status status;
    if (!in_index)
      status = share(same, index);
    else if (const auto& [tensor, file] = index->weight_map[entry++]; !opaque.contains(file))
      status = decide(same, tensor, file, *index);
    if (!status) return status;
  }
  return {};
}

}  // namespace wcache

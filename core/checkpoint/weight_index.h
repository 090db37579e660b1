#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/result.h"

namespace wcache {

/// A file such as model.safetensors.index.json: which file holds which tensor.
struct WeightIndex {
  std::string name;                                             ///< the index file's own
  std::vector<std::pair<std::string, std::string>> weight_map;  ///< tensor, file; sorted by tensor
  std::set<std::string, std::less<>> files;  ///< every file it names, relative to the checkpoint

  bool names(std::string_view file) const { return files.contains(file); }
};

/// Reads an index from an open file. Reason::corrupt, naming the index and the check, for what is not a JSON
/// object with a weight_map of strings, names a tensor twice or none at all, or names a file outside of the
/// checkpoint. Whether the files are there is not its question. total_size is not believed: it is often
/// missing or wrong.
Result<WeightIndex> read_weight_index(int fd, std::uint64_t file_nbytes, std::string_view name);

}  // namespace wcache

#pragma once

#include <filesystem>
#include <string>

#include "core/result.h"

namespace wcache {

/// MODEL, found on disk.
struct ModelPath {
  std::filesystem::path root;  ///< absolute, symbolic links resolved; of a single file all but the last one
  std::string name;            ///< for by-name/
  bool is_directory = true;
};

/// Errors are Reason::invalid and say what to give instead: nothing there, a hub id, a hub cache's folder of
/// a repository, neither directory nor file. Reason::denied where the path cannot be looked at.
Result<ModelPath> locate_model(const std::filesystem::path& model);

}  // namespace wcache

#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/checkpoint/checkpoint.h"
#include "core/result.h"

namespace wcache {

/// Something in the directory that is no sub-directory.
struct FoundFile {
  std::string name;            ///< relative to the root
  std::filesystem::path path;  ///< symbolic links resolved
  std::optional<Error>
      problem;  ///< why it could not be served: a broken link, a directory where weights should be ...
  std::string special;  ///< "a FIFO, not a file" for a FIFO, socket or device; else empty
};

struct Scan {
  std::vector<FoundFile> files;   ///< sorted by name
  std::vector<LeftOut> left_out;  ///< directories that were not entered
};

/// Lists `root` (absolute, resolved) and what is below it. A file's symbolic link is followed wherever it
/// leads; a directory's only to a place within the root that is not above it. Directories of version control
/// and caches (.git, .cache) and wcache's own (.wcache) are not entered. It opens no file. Bounded: 100,000
/// files, 32 levels.
Result<Scan> scan_directory(const std::filesystem::path& root);

}  // namespace wcache

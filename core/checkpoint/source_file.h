#pragma once

#include <filesystem>
#include <string>

#include "core/checkpoint/checkpoint.h"
#include "core/fd.h"

namespace wcache {

struct OpenedSource {
  SourceFile file;
  std::string architecture;  ///< of a GGUF; else empty
  Fd fd;
};

/// Opens a regular file for reading and notes its identity as it is then.
Result<OpenedSource> open_source(std::string name, const std::filesystem::path& path, FileKind kind);

/// Reads the header of an opened source, as its kind has one, into its `tensors` and `architecture`. Opaque
/// weights are only looked at for being weights at all.
Status read_header(OpenedSource& source);

/// The whole of an opened source that has at most `limit` bytes; Reason::corrupt for a longer one.
Result<std::string> read_text(const OpenedSource& source, std::uint64_t limit);

}  // namespace wcache

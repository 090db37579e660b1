#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "core/digest.h"
#include "core/result.h"

namespace wcache {

/// One tensor of a weight file, as the file's own header describes it.
struct TensorInfo {
  std::string name;
  std::string dtype;                 ///< the format's own spelling: "BF16", "F8_E4M3"; "q4_1" for GGUF
  std::vector<std::uint64_t> shape;  ///< elements, outermost first (safetensors order, also for GGUF)
  std::uint64_t offset = 0;          ///< first byte, from the start of the file
  std::uint64_t nbytes = 0;
  bool shadowed = false;  ///< another file of the checkpoint is the one that the name means (open_checkpoint)
  bool operator==(const TensorInfo&) const = default;
};

enum class FileKind {
  other,        ///< served byte for byte: config, tokenizer, code
  safetensors,  ///< weights with a tensor table
  gguf,         ///< weights with a tensor table
  opaque,       ///< weights of a known suffix whose inside is not read (.bin, .pt, .pth, ...)
};

constexpr bool is_weights(FileKind kind) {
  return kind != FileKind::other;
}

/// What tells one state of a file from another without reading it.
struct FileIdentity {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::uint64_t nbytes = 0;
  std::int64_t mtime_ns = 0;  ///< since the epoch
  std::int64_t ctime_ns = 0;
  bool operator==(const FileIdentity&) const = default;

  static FileIdentity of(const struct stat& st);
};

/// A file of the checkpoint that is served.
struct SourceFile {
  std::string name;            ///< relative to the checkpoint, '/' between parts; UTF-8 is not required of it
  std::filesystem::path path;  ///< where to open it, symbolic links resolved
  FileIdentity identity;
  FileKind kind = FileKind::other;
  std::vector<TensorInfo>
      tensors;  ///< sorted by offset, then size, then name; empty for `other` and `opaque`
};

/// A file that is not served, and why, in words for fingerprint.json.
struct LeftOut {
  std::string name;
  std::string why;
};

/// A model on disk: a directory in Hugging Face layout, a hub cache snapshot, or a single weight file.
struct Checkpoint {
  std::filesystem::path root;     ///< absolute; the directory, or the single file
  std::string name;               ///< base name; of a hub cache snapshot the repository's last part
  std::vector<SourceFile> files;  ///< sorted by name
  std::vector<LeftOut> left_out;  ///< sorted by name
  /// config.json architectures[0], else "general.architecture" of a GGUF; empty when unknown.
  std::string architecture;
  /// config.json dtype or torch_dtype, else the dtype of most weight bytes; empty when there is none.
  std::string dtype;
  /// config.json quantization_config.quant_method; empty when there is none.
  std::string quantization;
};

/// Reads directory, headers and index of MODEL; no tensor bytes. Every rule of what is served and left out is
/// here (docs/checkpoints.md). Errors name the file and the check that failed: invalid (no such path, a hub
/// id, an empty directory, no weights), corrupt (malformed file or index), unsupported (a GGUF of an unknown
/// kind), denied, io. Names of tensors that are not `shadowed` are unique in the checkpoint; within a file
/// all are.
Result<Checkpoint> open_checkpoint(const std::filesystem::path& model);

/// Parts of a weight file's header that do not depend on the directory around it. `file_nbytes` is the file's
/// size. `name` is used in errors only. Both answer with tensors sorted by offset, then size, then name.
///
/// safetensors: the checks are those of the library, in its order; a failed one is Reason::corrupt and the
/// message names file, tensor and check by the library's word ("InvalidOffset: ..."). Beyond the library,
/// names given twice are refused.
Result<std::vector<TensorInfo>> read_safetensors_header(int fd, std::uint64_t file_nbytes,
                                                        std::string_view name);

struct GgufHeader {
  std::vector<TensorInfo> tensors;
  std::string architecture;
};
Result<GgufHeader> read_gguf_header(int fd, std::uint64_t file_nbytes, std::string_view name);

/// The hash segments of a file: its header, each tensor, each gap between; the whole file when it has no
/// tensors.
std::vector<Segment> segments_of(std::uint64_t file_nbytes, const std::vector<TensorInfo>& tensors);

}  // namespace wcache

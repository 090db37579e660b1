#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/checkpoint/checkpoint.h"
#include "core/digest.h"
#include "core/result.h"

namespace wcache {

enum class Role { target, draft0 };
enum class Layout { checkpoint, mtp, sharded, published };

std::string_view to_string(Role role);      ///< "target", "draft0": also the directory's name
std::string_view to_string(Layout layout);  ///< "checkpoint", "mtp", ...
Result<Role> role_from_string(std::string_view word);
Result<Layout> layout_from_string(std::string_view word);

/// A run of source bytes and its place in an image.
struct Piece {
  std::uint64_t image_offset = 0;
  std::uint32_t source = 0;  ///< index into EntryPlan::sources
  std::uint64_t source_offset = 0;
  std::uint64_t nbytes = 0;
};

/// One file as it will be served: what its bytes are made of, in which units they are hashed, which tensors
/// lie in it.
struct ImagePlan {
  std::string name;  ///< relative to the entry's directory
  FileKind kind = FileKind::other;
  std::uint64_t nbytes = 0;
  std::int64_t mtime_ns = 0;
  std::string head;               ///< literal bytes at offset 0 (a generated header); empty for a plain copy
  std::vector<Piece> pieces;      ///< sorted by image_offset; with `head` they cover the image exactly
  std::vector<Segment> segments;  ///< never empty ones; cover the image exactly
  std::vector<TensorInfo> tensors;  ///< offsets in the image
};

/// What one rank's daemon has to hold for one entry, before a byte of it is read. Made by plan_checkpoint
/// (and, for drafts, by draftroute's MTP selection); consumed by the fill. Sources are opened by the fill,
/// which checks that each still has the identity noted here.
struct EntryPlan {
  Role role = Role::target;
  Layout layout = Layout::checkpoint;
  std::uint32_t rank = 0;
  std::uint32_t tp_size = 1;  ///< ranks that hold different bytes; 1 for an unsharded checkpoint
  std::string name;           ///< for by-name/
  std::string source;         ///< the checkpoint's absolute path
  std::string architecture, dtype, quantization;
  std::vector<SourceFile> sources;  ///< their `tensors` are not needed any more and may be empty
  std::vector<ImagePlan> images;    ///< sorted by name
  std::vector<LeftOut> left_out;

  std::uint64_t nbytes() const;         ///< of all images
  std::uint64_t weight_nbytes() const;  ///< of the weight images
  std::uint64_t tensor_count() const;
};

/// The weight images alone, or all others, in their order: what a fill needs of them, without tensors.
EntryPlan weights_of(const EntryPlan& plan);
EntryPlan without_weights(const EntryPlan& plan);

/// Layout `checkpoint`: every served file is an image, byte for byte.
EntryPlan plan_checkpoint(Checkpoint checkpoint, Role role);

/// How many ranks a checkpoint in vLLM's sharded_state naming (model-rank-<r>-part-<p>.safetensors) is
/// sharded for; 0 for one that is not.
std::uint32_t shard_ranks(const Checkpoint& checkpoint);

/// Layout `sharded`: rank `rank` of `tp_size` holds its own weight files and every file that is no rank's.
/// Reason:: invalid, key "--tensor-parallel-size", for a checkpoint that is sharded for another number of
/// ranks; corrupt for one in which a rank has no file.
Result<EntryPlan> plan_rank(Checkpoint checkpoint, Role role, std::uint32_t rank, std::uint32_t tp_size);

}  // namespace wcache

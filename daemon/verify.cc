#include "daemon/verify.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/fd.h"
#include "core/image_hash.h"

namespace wcache {
namespace {

constexpr std::chrono::milliseconds kBetweenReports{200};

Result<Mapping> map(const Fd& fd, std::uint64_t nbytes, std::string_view what) {
  return Mapping::map(fd.get(), nbytes, PROT_READ, MAP_SHARED, what);
}

VerifyReply difference(std::string file, std::string tensor, const Digest& expected, const Digest& found) {
  return VerifyReply{false, std::move(file), std::move(tensor), to_hex(expected), to_hex(found)};
}

/// The tensor that a segment is; empty for headers and gaps.
std::string tensor_at(const ImagePlan& image, const Segment& segment) {
  for (const TensorInfo& tensor : image.tensors)
    if (tensor.offset == segment.offset && tensor.nbytes == segment.nbytes) return tensor.name;
  return {};
}

std::optional<VerifyReply> compare(const ImagePlan& image, const ImageDigests& expected,
                                   const ImageDigests& found) {
  for (std::size_t i = 0; i < image.segments.size(); ++i)
    if (expected.segments[i] != found.segments[i])
      return difference(image.name, tensor_at(image, image.segments[i]), expected.segments[i],
                        found.segments[i]);
  if (expected.file != found.file) return difference(image.name, {}, expected.file, found.file);
  return std::nullopt;
}

/// The bytes of one image, wherever they are, a block at a time.
class ImageBytes {
 public:
  ImageBytes(const StoredEntry& entry, std::size_t image) : entry_(entry), image_(image) {}

  Status open() {
    const Fd& fd = entry_.memory.images[image_];
    if (!fd) return {};
    auto mapped = map(fd, entry_.plan.images[image_].nbytes, entry_.plan.images[image_].name);
    if (!mapped) return fail(mapped.error());
    mapping_.emplace(std::move(*mapped));
    return {};
  }

  /// Valid until the next call.
  Result<std::span<const std::byte>> at(const Segment& where) {
    if (mapping_) return mapping_->bytes().subspan(where.offset, where.nbytes);
    copy_.resize(where.nbytes);
    if (Status s = entry_.device->read(image_, where.offset, copy_); !s) return fail(s.error());
    return copy_;
  }

 private:
  const StoredEntry& entry_;
  std::size_t image_;
  std::optional<Mapping> mapping_;
  std::vector<std::byte> copy_;
};

}  // namespace

Result<VerifyReply> verify_entry(const StoredEntry& entry,
                                 const std::function<void(std::uint64_t done, std::uint64_t total)>& progress,
                                 std::stop_token stop) {
  const std::uint64_t total = entry.plan.nbytes();
  std::uint64_t done = 0;
  auto last = std::chrono::steady_clock::now() - kBetweenReports;
  const auto report = [&] {
    if (std::chrono::steady_clock::now() - last < kBetweenReports) return;
    last = std::chrono::steady_clock::now();
    progress(done, total);
  };

  const Result<Mapping> manifest = map(entry.memory.manifest, entry.manifest_nbytes, "the manifest");
  if (!manifest) return fail(manifest.error());
  if (const Digest found = digest_of(manifest->bytes()); found != entry.manifest_digest)
    return difference(".wcache/manifest", {}, entry.manifest_digest, found);

  for (std::size_t i = 0; i < entry.plan.images.size(); ++i) {
    const ImagePlan& image = entry.plan.images[i];
    ImageBytes bytes(entry, i);
    if (Status s = bytes.open(); !s) return fail(s.error());
    ImageHash hash(image);
    for (std::size_t block = 0; block < hash.block_count(); ++block) {
      if (stop.stop_requested()) return fail(Reason::timeout, "stopped while " + image.name + " was hashed");
      report();
      const Segment where = hash.block(block);
      const auto found = bytes.at(where);
      if (!found) return fail(found.error());
      hash.add(block, *found);
      done += where.nbytes;
    }
    if (std::optional<VerifyReply> differs = compare(image, entry.digests[i], hash.finish())) return *differs;
  }
  progress(total, total);
  return VerifyReply{true, {}, {}, {}, {}};
}

}  // namespace wcache

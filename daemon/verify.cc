#include "daemon/verify.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>

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
    const Result<Mapping> bytes = map(entry.memory.images[i], image.nbytes, image.name);
    if (!bytes) return fail(bytes.error());
    ImageHash hash(image);
    for (std::size_t block = 0; block < hash.block_count(); ++block) {
      if (stop.stop_requested()) return fail(Reason::timeout, "stopped while " + image.name + " was hashed");
      report();
      const Segment where = hash.block(block);
      hash.add(block, bytes->bytes().subspan(where.offset, where.nbytes));
      done += where.nbytes;
    }
    if (std::optional<VerifyReply> differs = compare(image, entry.digests[i], hash.finish())) return *differs;
  }
  progress(total, total);
  return VerifyReply{true, {}, {}, {}, {}};
}

}  // namespace wcache

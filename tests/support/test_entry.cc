#include "tests/support/test_entry.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "core/checkpoint/checkpoint.h"
#include "core/key.h"
#include "daemon/memory/kernel.h"

namespace wcache::test {
namespace {

template <class T>
T need(Result<T> result, const char* what) {
  if (result) return std::move(*result);
  std::fprintf(stderr, "%s: %s\n", what, result.error().message.c_str());
  std::abort();
}

void need(const Status& status, const char* what) {
  if (status) return;
  std::fprintf(stderr, "%s: %s\n", what, status.error().message.c_str());
  std::abort();
}

EntryPlan plan_of(const std::vector<TestFile>& files, const TestEntryOptions& options) {
  EntryPlan plan;
  plan.role = options.role;
  plan.layout = options.layout;
  plan.rank = options.rank;
  plan.tp_size = options.tp_size;
  plan.name = options.name;
  plan.source = "/models/" + options.name;
  plan.architecture = "TinyForCausalLM";
  plan.dtype = "bfloat16";
  for (const TestFile& file : files) {
    ImagePlan image;
    image.name = file.name;
    image.kind = file.kind;
    image.nbytes = file.bytes.size();
    image.mtime_ns = file.mtime_ns;
    image.segments = segments_of(image.nbytes, file.tensors);
    image.tensors = file.tensors;
    plan.images.push_back(std::move(image));
  }
  return plan;
}

ImageDigests digests_of(const TestFile& file, const ImagePlan& image) {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(file.bytes));
  ImageDigests digests;
  for (const Segment& segment : image.segments)
    digests.segments.push_back(segment_digest(bytes.subspan(segment.offset, segment.nbytes)));
  digests.file = combine_segments(image.segments, digests.segments);
  return digests;
}

}  // namespace

std::vector<Fd> TestEntry::images() const {
  std::vector<Fd> copies;
  for (const Fd& image : arena.images) copies.push_back(need(image.duplicate(), "an image"));
  return copies;
}

Fd TestEntry::manifest() const {
  return need(arena.manifest.duplicate(), "the manifest");
}

TestEntry make_test_entry(std::vector<TestFile> files, const TestEntryOptions& options) {
  std::sort(files.begin(), files.end(), [](const TestFile& a, const TestFile& b) { return a.name < b.name; });
  const EntryPlan plan = plan_of(files, options);
  std::vector<ImageDigests> digests;
  for (std::size_t i = 0; i < files.size(); ++i) digests.push_back(digests_of(files[i], plan.images[i]));

  TestEntry entry;
  const Key key = key_of(plan, digests);
  entry.fingerprint = options.fingerprint.value_or(key.fingerprint());
  std::optional<GroupPlace> place;
  if (options.tp_size > 1) place = GroupPlace{options.tp_size, key};
  const std::vector<std::byte> manifest =
      need(build_manifest(plan, digests, entry.fingerprint,
                          {"host", "HOST-" + std::to_string(options.rank), "file"}, place),
           "the manifest");
  entry.manifest_nbytes = manifest.size();
  const MemoryKernel kernel = MemoryKernel::real();
  ArenaOptions arena_options;
  arena_options.memfd = options.memfd;
  Arena arena = need(Arena::create(plan, kernel, arena_options), "the arena");
  const std::vector<std::span<std::byte>> images = arena.images();
  for (std::size_t i = 0; i < files.size(); ++i)
    if (!files[i].bytes.empty()) std::memcpy(images[i].data(), files[i].bytes.data(), files[i].bytes.size());
  need(arena.add_manifest(manifest), "the manifest");
  entry.arena = need(std::move(arena).seal(), "sealing");
  return entry;
}

std::string test_bytes(std::size_t nbytes, std::uint64_t seed) {
  std::string bytes(nbytes, '\0');
  std::uint64_t state = seed * 2654435761 + 88172645463325252;
  for (char& c : bytes) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    c = static_cast<char>(state);
  }
  return bytes;
}

TestFile test_weights(const std::string& name, const std::vector<std::string>& names,
                      std::uint64_t tensor_nbytes, std::uint64_t head_nbytes) {
  TestFile file;
  file.name = name;
  file.kind = FileKind::safetensors;
  file.bytes = test_bytes(head_nbytes + names.size() * tensor_nbytes, std::hash<std::string>{}(name));
  std::uint64_t offset = head_nbytes;
  for (const std::string& tensor : names) {
    file.tensors.push_back({tensor, "U8", {tensor_nbytes}, offset, tensor_nbytes});
    offset += tensor_nbytes;
  }
  return file;
}

std::vector<TestFile> small_model() {
  return {{"config.json", "{\"architectures\": [\"TinyForCausalLM\"]}\n"},
          {"sub/deep/notes.txt", "notes\n"},
          {"empty.txt", ""},
          test_weights("model-00001-of-00002.safetensors", {"model.embed.weight", "a/b%c", "."}, 5000),
          test_weights("model-00002-of-00002.safetensors", {"lm_head.weight"}, 100'001)};
}

}  // namespace wcache::test

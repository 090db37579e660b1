#include "tests/support/test_entry.h"

#include <sys/mman.h>
#include <unistd.h>

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

std::vector<Fd> duplicates(const std::vector<Fd>& fds) {
  std::vector<Fd> copies;
  for (const Fd& fd : fds)
    if (fd) copies.push_back(need(fd.duplicate(), "a descriptor"));
  return copies;
}

void move_to_device(TestEntry& entry, const TestDevice& device) {
  for (std::size_t i = 0; i < entry.plan.images.size(); ++i)
    if (is_weights(entry.plan.images[i].kind)) entry.arena.images[i].reset();
  entry.instance = to_hex(digest_of(std::as_bytes(std::span(device.uuid))));
  for (const std::string& bytes : slab_bytes(entry)) {
    if (device.ipc_kind == "cuda-ipc") {
      entry.handles.emplace_back().fill(static_cast<std::byte>(entry.handles.size()));
      continue;
    }
    Fd& slab = entry.slabs.emplace_back(Fd::adopt(memfd_create("slab", MFD_CLOEXEC)));
    if (write(slab.get(), bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) std::abort();
  }
}

}  // namespace

std::vector<Fd> TestEntry::images() const {
  return duplicates(arena.images);
}

std::vector<Fd> TestEntry::slab_copies() const {
  return duplicates(slabs);
}

Fd TestEntry::manifest() const {
  return need(arena.manifest.duplicate(), "the manifest");
}

std::vector<std::string> slab_bytes(const TestEntry& entry) {
  std::vector<std::string> slabs;
  for (const std::uint64_t nbytes : entry.slab_plan.slabs) slabs.emplace_back(nbytes, '\0');
  for (std::size_t i = 0; i < entry.slab_plan.images.size(); ++i)
    for (std::size_t s = 0; s < entry.slab_plan.images[i].size(); ++s) {
      const Segment& segment = entry.plan.images[i].segments[s];
      const SlabPlace& place = entry.slab_plan.images[i][s];
      slabs[place.slab].replace(place.offset, segment.nbytes, entry.bytes[i], segment.offset, segment.nbytes);
    }
  return slabs;
}

TestEntry make_test_entry(std::vector<TestFile> files, const TestEntryOptions& options) {
  std::sort(files.begin(), files.end(), [](const TestFile& a, const TestFile& b) { return a.name < b.name; });
  TestEntry entry;
  const EntryPlan& plan = entry.plan = plan_of(files, options);
  std::vector<ImageDigests>& digests = entry.digests;
  for (std::size_t i = 0; i < files.size(); ++i) digests.push_back(digests_of(files[i], plan.images[i]));
  for (const TestFile& file : files) entry.bytes.push_back(file.bytes);

  const Key key = key_of(plan, digests);
  entry.fingerprint = options.fingerprint.value_or(key.fingerprint());
  std::optional<GroupPlace> place;
  const std::uint32_t ranks = options.node_ranks == 0 ? options.tp_size : options.node_ranks;
  if (ranks > 1) place = GroupPlace{ranks, key};
  Placement placement{"host", "HOST-" + std::to_string(options.rank), "file"};
  if (options.device) {
    placement = {"cuda", options.device->uuid, options.device->ipc_kind};
    entry.slab_plan = need(plan_slabs(plan, 4096, options.device->slab_nbytes, 1000), "the slabs");
  }
  const std::vector<std::byte> manifest =
      need(build_manifest(plan, digests, entry.fingerprint, placement, place,
                          options.device ? &entry.slab_plan : nullptr),
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
  if (options.device) move_to_device(entry, *options.device);
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

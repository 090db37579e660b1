#include "fs/entry.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <functional>
#include <string>

#include "tests/unit/fs/part_of.h"

namespace wcache {
namespace {

using namespace test;

Reason reason_of(std::vector<TestFile> files) {
  Result<std::shared_ptr<const Part>> part = try_part(std::move(files));
  if (!part) return part.error().reason;
  Result<std::shared_ptr<Entry>> entry = Entry::make({*part}, 0);
  return entry ? Reason::internal : entry.error().reason;
}

TEST(Entry, RefusesNamesThatAreNoPathBelowADirectory) {
  for (const char* name :
       {"", "/etc/passwd", "../up", "a/../b", "a//b", "a/", ".", "./a", ".wcache", ".wcache/manifest"})
    EXPECT_EQ(reason_of({{name, "x"}}), Reason::corrupt) << "'" << name << "'";
  EXPECT_EQ(reason_of({{std::string(256, 'x'), "x"}}), Reason::corrupt);
  EXPECT_EQ(reason_of({{"a", "x"}, {"a/b", "x"}}), Reason::corrupt);
}

/// A sealed memfd with `text`, as a manifest goes over the socket.
Fd sealed(const std::string& text) {
  const Fd memory = Fd::adopt(memfd_create("manifest", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(write(memory.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  EXPECT_EQ(fcntl(memory.get(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW), 0);
  Result<Fd> reader = open_file(("/proc/self/fd/" + std::to_string(memory.get())).c_str(), O_RDONLY);
  return reader ? std::move(*reader) : Fd();
}

TEST(Entry, RefusesANameThatIsTakenTwice) {
  TestEntryOptions options;
  options.memfd = true;
  const TestEntry made = make_test_entry({{"file-1", "x"}, {"file-2", "y"}}, options);
  std::string manifest(made.manifest_nbytes, '\0');
  ASSERT_TRUE(
      read_exact(made.arena.manifest.get(), std::as_writable_bytes(std::span(manifest)), 0, "the manifest"));
  const std::size_t at = manifest.find("file-2");
  ASSERT_NE(at, std::string::npos);
  manifest[at + 5] = '1';
  Result<std::shared_ptr<const Part>> part =
      Part::make({sealed(manifest), manifest.size(), made.images(), {}, {}, {}}, 1, "", quiet_log());
  ASSERT_TRUE(part) << part.error().message;
  EXPECT_EQ(Entry::make({*part}, 0).error().reason, Reason::corrupt);
}

TEST(Entry, AWordLikeTheMetaDirectoryIsFineElsewhere) {
  const auto entry = entry_of({{"sub/.wcache", "x"}, {".wcache2", "y"}});
  EXPECT_EQ(entry->files().size(), 2u);
}

TEST(Entry, MergesTheRanksOfAGroup) {
  TestEntryOptions options;
  options.layout = Layout::sharded;
  options.tp_size = 2;
  options.fingerprint = Fingerprint{{7, 8}};
  const auto first = part_of({{"config.json", "{}"}, test_weights("r0.safetensors", {"a", "b"}, 8)}, options);
  options.rank = 1;
  const auto second =
      part_of({{"config.json", "{}"}, test_weights("r1.safetensors", {"a", "c"}, 8)}, options);
  Result<std::shared_ptr<Entry>> entry = Entry::make({first, second}, 0);
  ASSERT_TRUE(entry) << entry.error().message;
  EXPECT_EQ((*entry)->files().size(), 3u);
  EXPECT_EQ((*entry)->tensor_count(), 4u);
  EXPECT_EQ((*entry)->find_tensor("a"), 0u);  // the lowest rank's
  EXPECT_EQ((*entry)->find_tensor("c"), 3u);
  EXPECT_EQ((*entry)->tensor(3)->name, "c");
  EXPECT_EQ((*entry)->tensor(4), std::nullopt);

  options.fingerprint = Fingerprint{{7, 9}};
  const auto stranger = part_of({{"config.json", "{}"}}, options);
  EXPECT_EQ(Entry::make({first, stranger}, 0).error().reason, Reason::mismatch);
}

TEST(Entry, CopiesOfTheWholeOnSeveralDevicesAreShownOnce) {
  TestEntryOptions options;
  options.node_ranks = 2;
  options.device = TestDevice{};
  const auto first = part_of(small_model(), options);
  options.rank = 1;
  options.device->uuid = "GPU-1";
  const auto second = part_of(small_model(), options);
  Result<std::shared_ptr<Entry>> entry = Entry::make({first, second}, 0);
  ASSERT_TRUE(entry) << entry.error().message;
  EXPECT_EQ((*entry)->files().size(), small_model().size());
  EXPECT_EQ((*entry)->tensor_count(), 4u);
  EXPECT_EQ((*entry)->nbytes(), first->manifest().nbytes());
  for (const Entry::File& file : (*entry)->files()) EXPECT_EQ(file.part, 0u);
  EXPECT_EQ((*entry)->tensor(3)->name, first->manifest().tensor(3)->name);
  EXPECT_EQ((*entry)->tensor(4), std::nullopt);

  std::vector<TestFile> other = small_model();
  options.fingerprint = first->manifest().fingerprint();
  other[0].bytes += "\n";
  EXPECT_EQ(Entry::make({first, part_of(other, options)}, 0).error().reason, Reason::mismatch);
}

TEST(Part, HoldsTheImagesThatAreInHostMemoryAndTheSlabs) {
  TestEntryOptions options;
  options.device = TestDevice{};
  const auto part = part_of(small_model(), options);
  const std::vector<TestFile> files = small_model();
  for (std::size_t row = 0; row < part->manifest().file_count(); ++row) {
    const ManifestView::File file = *part->manifest().file(row);
    EXPECT_EQ(part->on_device(row), is_weights(file.kind)) << file.name;
    EXPECT_EQ(part->image_bytes(row).size(), part->on_device(row) ? 0 : file.nbytes) << file.name;
  }
  EXPECT_EQ(part->slabs().size(), 2u);
  EXPECT_EQ(part->descriptors().size(), 1u + 3u + 2u);
}

TEST(Part, RefusesSlabsThatDisagreeWithItsManifest) {
  TestEntryOptions options;
  options.memfd = true;
  const auto refusal = [&](const TestEntryOptions& as, const std::function<void(Attachment&)>& damage) {
    const TestEntry made = make_test_entry(small_model(), as);
    Attachment attachment = attachment_of(made);
    damage(attachment);
    Result<std::shared_ptr<const Part>> part = Part::make(std::move(attachment), 1, "", quiet_log());
    return part ? Reason::internal : part.error().reason;
  };
  const auto on = [&](const std::string& kind) {
    TestEntryOptions as = options;
    as.device = TestDevice{.ipc_kind = kind};
    return as;
  };
  EXPECT_EQ(refusal(on("cuda-vmm"), [](Attachment&) {}), Reason::internal);
  EXPECT_EQ(refusal(on("cuda-vmm"), [](Attachment& a) { a.slabs.pop_back(); }), Reason::corrupt);
  EXPECT_EQ(refusal(on("cuda-vmm"), [](Attachment& a) { a.images.pop_back(); }), Reason::corrupt);
  EXPECT_EQ(refusal(on("cuda-vmm"), [](Attachment& a) { a.images.push_back(*a.images[0].duplicate()); }),
            Reason::corrupt);
  EXPECT_EQ(refusal(on("cuda-vmm"), [](Attachment& a) { a.handles.resize(a.slabs.size()); }),
            Reason::corrupt);
  EXPECT_EQ(refusal(on("cuda-ipc"), [](Attachment&) {}), Reason::internal);
  EXPECT_EQ(refusal(on("cuda-ipc"), [](Attachment& a) { a.handles.pop_back(); }), Reason::corrupt);
  EXPECT_EQ(refusal(on("cuda-ipc"), [](Attachment& a) { a.slabs.push_back(*a.images[0].duplicate()); }),
            Reason::corrupt);
  EXPECT_EQ(refusal(on("of tomorrow"), [](Attachment&) {}), Reason::corrupt);
  EXPECT_EQ(refusal(options, [](Attachment& a) { a.slabs.push_back(*a.images[0].duplicate()); }),
            Reason::corrupt);
}

TEST(Part, RefusesWhatDisagreesWithItsManifest) {
  TestEntryOptions options;
  options.memfd = true;
  const TestEntry made = make_test_entry(small_model(), options);
  const auto refusal = [&](std::vector<Fd> images, std::uint64_t manifest_nbytes) {
    Result<std::shared_ptr<const Part>> part =
        Part::make({made.manifest(), manifest_nbytes, std::move(images), {}, {}, {}}, 1, "", quiet_log());
    return part ? std::string("taken") : part.error().message;
  };
  EXPECT_EQ(refusal(made.images(), made.manifest_nbytes), "taken");
  EXPECT_NE(refusal(made.images(), made.manifest_nbytes + 1).find("manifest"), std::string::npos);

  std::vector<Fd> fewer = made.images();
  fewer.pop_back();
  EXPECT_NE(refusal(std::move(fewer), made.manifest_nbytes).find("4 images"), std::string::npos);

  std::vector<Fd> swapped = made.images();
  std::swap(swapped[0], swapped[3]);
  EXPECT_NE(refusal(std::move(swapped), made.manifest_nbytes).find("config.json"), std::string::npos);

  std::vector<Fd> writable = made.images();
  writable[0] = Fd::adopt(memfd_create("writable", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(writable[0].get(), static_cast<off_t>(small_model()[0].bytes.size())), 0);
  EXPECT_NE(refusal(std::move(writable), made.manifest_nbytes).find("config.json"), std::string::npos);
}

}  // namespace
}  // namespace wcache

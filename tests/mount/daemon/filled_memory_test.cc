#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>

#include "core/digest.h"
#include "core/sealed.h"
#include "daemon/fill/disk.h"
#include "daemon/fill/fill.h"
#include "daemon/memory/arena.h"
#include "daemon/memory/pages.h"
#include "tests/unit/daemon/fill/image_memory.h"

namespace wcache {
namespace {

constexpr std::uint64_t kHuge = std::uint64_t{2} << 20;

/// Real files, real memory, each real way of reading: what a daemon does before it publishes.
class FilledMemory : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "wcache-filled-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    directory_ = name;
    add("config.json", FileKind::other, 777);
    add("model-00001.safetensors", FileKind::safetensors, 20 * kHuge + 4321);
    add("model-00002.safetensors", FileKind::safetensors, 3 * kHuge);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  void add(const std::string& name, FileKind kind, std::uint64_t nbytes) {
    contents_.push_back(testing::random_bytes(nbytes, contents_.size()));
    SourceFile source;
    source.name = name;
    source.path = directory_ / name;
    std::ofstream(source.path, std::ios::binary)
        .write(reinterpret_cast<const char*>(contents_.back().data()), static_cast<std::streamsize>(nbytes));
    struct stat st {};
    ASSERT_EQ(stat(source.path.c_str(), &st), 0);
    source.identity = FileIdentity::of(st);
    plan_.images.push_back(testing::whole_image(source, static_cast<std::uint32_t>(plan_.sources.size())));
    plan_.images.back().kind = kind;
    plan_.sources.push_back(std::move(source));
  }

  std::filesystem::path directory_;
  std::vector<std::vector<std::byte>> contents_;
  EntryPlan plan_;
};

TEST_P(FilledMemory, IsSealedAndHoldsTheFilesBytes) {
  const MemoryKernel kernel = MemoryKernel::real();
  auto arena = Arena::create(plan_, kernel);
  ASSERT_TRUE(arena) << arena.error().message;
  if (arena->kind() != MemoryKind::tmpfs) GTEST_SKIP() << "needs CAP_SYS_ADMIN: fsopen is refused";
  const MachineDisk machine = open_machine_disk(DiskOptions::from_word(GetParam()).value());
  FillOptions options;
  options.note = machine.note;
  const auto report = fill(plan_, arena->images(), *machine.disk, options);
  ASSERT_TRUE(report) << report.error().message;
  // Fails with EBUSY while any read, ring or mapping could still write.
  const auto sealed = std::move(*arena).seal();
  ASSERT_TRUE(sealed) << sealed.error().message;
  for (std::size_t i = 0; i < contents_.size(); ++i) {
    EXPECT_EQ(report->digests[i].file, file_digest(contents_[i]));
    EXPECT_TRUE(check_sealed(sealed->images[i].get(), contents_[i].size()));
    auto mapping = Mapping::map(sealed->images[i].get(), contents_[i].size(), PROT_READ, MAP_SHARED, "image");
    ASSERT_TRUE(mapping);
    EXPECT_TRUE(std::ranges::equal(mapping->bytes(), contents_[i]));
    // Behind the end of the file, in its last page, lies nothing.
    for (std::uint64_t at = contents_[i].size(); at < whole_pages(contents_[i].size()); ++at)
      ASSERT_EQ(mapping->data()[at], std::byte{0});
  }
}

INSTANTIATE_TEST_SUITE_P(EveryWay, FilledMemory,
                         ::testing::Values("io_uring-direct", "io_uring-buffered", "threads"),
                         [](const auto& way) {
                           std::string name = way.param;
                           std::erase_if(
                               name, [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; });
                           return name;
                         });

}  // namespace
}  // namespace wcache

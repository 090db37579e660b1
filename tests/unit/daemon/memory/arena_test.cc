#include "daemon/memory/arena.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "core/sealed.h"
#include "daemon/memory/pages.h"
#include "tests/unit/core/sample_plan.h"

namespace wcache {
namespace {

using ::testing::HasSubstr;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

EntryPlan plan_of(std::uint64_t weight_nbytes) {
  EntryPlan plan;
  plan.images.push_back(testing::sample_image("config.json", FileKind::other, "{}"));
  plan.images.push_back(testing::sample_image("empty.txt", FileKind::other, ""));
  ImagePlan weights;
  weights.name = "model.safetensors";
  weights.kind = FileKind::safetensors;
  weights.nbytes = weight_nbytes;
  plan.images.push_back(weights);
  return plan;
}

std::string content(const Fd& fd) {
  struct stat st {};
  EXPECT_EQ(fstat(fd.get(), &st), 0);
  std::string out(static_cast<std::size_t>(st.st_size), '\0');
  EXPECT_TRUE(read_exact(fd.get(), std::as_writable_bytes(std::span(out)), 0, "image"));
  return out;
}

/// A kernel whose tmpfs is a directory, so that the sequence of calls can be seen, and failed, without
/// rights.
class DirectoryKernel {
 public:
  DirectoryKernel() {
    char name[] = "/tmp/wcache-arena-XXXXXX";
    path_ = mkdtemp(name);
    const auto context = [](const char*, unsigned) { return open("/dev/null", O_RDONLY | O_CLOEXEC); };
    table.fsopen = context;
    table.fspick = [context](int, const char*, unsigned flags) { return context("", flags); };
    table.fsmount = [this](int, unsigned, unsigned) {
      const std::string mount = path_ + "/" + std::to_string(mounts++);
      std::filesystem::create_directory(mount);
      return open(mount.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    };
    table.fsconfig = [this](int, unsigned command, const char* key, const void*, int) {
      if (key != nullptr) keys.emplace_back(key);
      if (key != nullptr && refused == key) return errno = EINVAL, -1;
      if (command == FSCONFIG_CMD_RECONFIGURE && reconfigure_errno != 0) return errno = reconfigure_errno, -1;
      return 0;
    };
  }
  ~DirectoryKernel() { std::filesystem::remove_all(path_); }

  MemoryKernel table = MemoryKernel::real();
  int mounts = 0;
  std::vector<std::string> keys;
  std::string refused;
  int reconfigure_errno = 0;

 private:
  std::string path_;
};

TEST(Arena, HoldsEachImageAtItsSizeAndTheManifest) {
  const MemoryKernel kernel = MemoryKernel::real();
  auto arena = Arena::create(plan_of(5'000'001), kernel, {.memfd = true});
  ASSERT_TRUE(arena) << arena.error().message;
  EXPECT_EQ(arena->kind(), MemoryKind::memfd);
  const auto images = arena->images();
  ASSERT_EQ(images.size(), 3u);
  EXPECT_EQ(images[0].size(), page_nbytes());
  EXPECT_EQ(images[1].size(), 0u);
  EXPECT_EQ(images[2].size(), whole_pages(5'000'001));
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(images[2].data()) % (2u << 20), 0u);
  std::memcpy(images[0].data(), "{}", 2);
  images[2][5'000'000] = std::byte{7};
  ASSERT_TRUE(arena->add_manifest(bytes_of("manifest")));

  auto sealed = std::move(*arena).seal();
  ASSERT_TRUE(sealed) << sealed.error().message;
  EXPECT_EQ(content(sealed->images[0]), "{}");
  EXPECT_EQ(content(sealed->images[1]), "");
  EXPECT_EQ(content(sealed->images[2]).size(), 5'000'001u);
  EXPECT_EQ(content(sealed->images[2]).back(), 7);
  EXPECT_EQ(content(sealed->manifest), "manifest");
  EXPECT_EQ(sealed->kind, MemoryKind::memfd);
}

TEST(Arena, WeightsThatLieElsewhereTakeNothing) {
  const MemoryKernel kernel = MemoryKernel::real();
  const EntryPlan plan = plan_of(5'000'001);
  EXPECT_EQ(arena_nbytes(plan) - arena_nbytes(plan, false), whole_pages(5'000'001));
  auto arena = Arena::create(plan, kernel, {.memfd = true, .weights = false});
  ASSERT_TRUE(arena) << arena.error().message;
  ASSERT_EQ(arena->images().size(), 3u);
  EXPECT_EQ(arena->images()[0].size(), page_nbytes());
  EXPECT_TRUE(arena->images()[2].empty());
  std::memcpy(arena->images()[0].data(), "{}", 2);
  ASSERT_TRUE(arena->add_manifest(bytes_of("manifest")));
  auto sealed = std::move(*arena).seal();
  ASSERT_TRUE(sealed) << sealed.error().message;
  ASSERT_EQ(sealed->images.size(), 3u);
  EXPECT_EQ(content(sealed->images[0]), "{}");
  EXPECT_TRUE(sealed->images[1]);
  EXPECT_FALSE(sealed->images[2]);
  EXPECT_EQ(content(sealed->manifest), "manifest");
}

TEST(Arena, MissingRightsOrKernelSupportLeadToMemfdsAndSaySo) {
  for (int errnum : {EPERM, ENOSYS, ENODEV}) {
    MemoryKernel kernel = MemoryKernel::real();
    kernel.fsopen = [errnum](const char*, unsigned) { return errno = errnum, -1; };
    auto arena = Arena::create(plan_of(100), kernel);
    ASSERT_TRUE(arena) << arena.error().message;
    auto sealed = std::move(*arena).seal();
    ASSERT_TRUE(sealed) << sealed.error().message;
    EXPECT_EQ(sealed->kind, MemoryKind::memfd);
    EXPECT_THAT(sealed->note, HasSubstr("fsopen"));
  }
}

TEST(Arena, OptionsThatTheKernelDoesNotKnowAreLeftOut) {
  for (const char* key : {"noswap", "huge"}) {
    DirectoryKernel kernel;
    kernel.refused = key;
    auto arena = Arena::create(plan_of(100), kernel.table);
    ASSERT_TRUE(arena) << arena.error().message;
    EXPECT_EQ(arena->kind(), MemoryKind::tmpfs);
    EXPECT_THAT(kernel.keys, ::testing::Contains(key));
    EXPECT_EQ(kernel.mounts, 2);
  }
}

TEST(Arena, NoMemoryIsOverBudgetAndNamesWhatWasNeeded) {
  for (int errnum : {ENOSPC, ENOMEM}) {
    MemoryKernel kernel = MemoryKernel::real();
    kernel.fallocate = [errnum](int, int, off_t, off_t) { return errno = errnum, -1; };
    const auto arena = Arena::create(plan_of(123'456), kernel, {.memfd = true, .shmem_enabled = "/dev/null"});
    ASSERT_FALSE(arena);
    EXPECT_EQ(arena.error().reason, Reason::over_budget);
    EXPECT_FALSE(arena.error().hint.empty());
  }
}

TEST(Arena, InterruptedAllocationGoesOn) {
  MemoryKernel kernel = MemoryKernel::real();
  int calls = 0;
  kernel.fallocate = [&calls](int fd, int mode, off_t offset, off_t nbytes) {
    if (++calls == 1) return errno = EINTR, -1;
    return fallocate(fd, mode, offset, nbytes);
  };
  EXPECT_TRUE(Arena::create(plan_of(100), kernel, {.memfd = true}));
  EXPECT_EQ(calls, 3);
}

TEST(Arena, StopEndsTheAllocation) {
  std::stop_source stop;
  stop.request_stop();
  const MemoryKernel kernel = MemoryKernel::real();
  const auto arena = Arena::create(plan_of(100), kernel, {.memfd = true}, stop.get_token());
  ASSERT_FALSE(arena);
  EXPECT_EQ(arena.error().reason, Reason::timeout);
}

TEST(Arena, AWriterThatIsLeftMakesSealFailAndNamesTheCause) {
  DirectoryKernel kernel;
  auto arena = Arena::create(plan_of(100), kernel.table);
  ASSERT_TRUE(arena) << arena.error().message;
  kernel.reconfigure_errno = EBUSY;
  const auto sealed = std::move(*arena).seal();
  ASSERT_FALSE(sealed);
  EXPECT_EQ(sealed.error().reason, Reason::internal);
  EXPECT_EQ(sealed.error().errnum, EBUSY);
  EXPECT_THAT(sealed.error().hint, HasSubstr("writable"));
}

TEST(Arena, MemoryThatIsStillWritableIsNeverGivenOut) {
  DirectoryKernel kernel;  // says that it made the file system read-only, and did not
  auto arena = Arena::create(plan_of(100), kernel.table);
  ASSERT_TRUE(arena) << arena.error().message;
  const auto sealed = std::move(*arena).seal();
  ASSERT_FALSE(sealed);
  EXPECT_EQ(sealed.error().reason, Reason::corrupt);
}

TEST(Arena, ASealedMemfdCannotBeChanged) {
  const MemoryKernel kernel = MemoryKernel::real();
  auto arena = Arena::create(plan_of(3'000'000), kernel, {.memfd = true});
  ASSERT_TRUE(arena) << arena.error().message;
  auto sealed = std::move(*arena).seal();
  ASSERT_TRUE(sealed) << sealed.error().message;
  const int fd = sealed->images[2].get();

  EXPECT_EQ(fcntl(fd, F_GETFL) & O_ACCMODE, O_RDONLY);
  EXPECT_EQ(pwrite(fd, "x", 1, 0), -1);
  EXPECT_EQ(ftruncate(fd, 1), -1);
  EXPECT_EQ(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), -1);
  void* writable = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  EXPECT_EQ(writable, MAP_FAILED);
  void* readable = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fd, 0);
  ASSERT_NE(readable, MAP_FAILED);
  EXPECT_EQ(mprotect(readable, 4096, PROT_READ | PROT_WRITE), -1);
  EXPECT_EQ(madvise(readable, 4096, MADV_REMOVE), -1);
  munmap(readable, 4096);

  // Whoever may open it for writing still meets the seals.
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  chmod(path.c_str(), 0600);
  const Fd writer(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (writer) {
    EXPECT_EQ(pwrite(writer.get(), "x", 1, 0), -1);
    EXPECT_EQ(errno, EPERM);
    EXPECT_EQ(ftruncate(writer.get(), 1), -1);
    EXPECT_EQ(ftruncate(writer.get(), 4'000'000), -1);
    EXPECT_EQ(fallocate(writer.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), -1);
    EXPECT_EQ(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, writer.get(), 0), MAP_FAILED);
  }
  EXPECT_TRUE(check_sealed(fd, 3'000'000));
}

TEST(CheckSealed, RefusesWhatCouldStillChange) {
  const Fd memfd(memfd_create("open", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(memfd.get(), 10), 0);
  EXPECT_THAT(check_sealed(memfd.get(), 10).error().message, HasSubstr("reading only"));
  const Fd reader(open(("/proc/self/fd/" + std::to_string(memfd.get())).c_str(), O_RDONLY | O_CLOEXEC));
  EXPECT_THAT(check_sealed(reader.get(), 10).error().message, HasSubstr("not read-only"));
  ASSERT_EQ(fcntl(memfd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE), 0);
  EXPECT_EQ(check_sealed(reader.get(), 10).error().reason, Reason::corrupt);
  ASSERT_EQ(fcntl(memfd.get(), F_ADD_SEALS, F_SEAL_WRITE), 0);
  EXPECT_TRUE(check_sealed(reader.get(), 10));
  EXPECT_THAT(check_sealed(reader.get(), 11).error().message, HasSubstr("10 bytes, the manifest says 11"));
}

TEST(CheckSealed, RefusesOtherKindsOfDescriptors) {
  const Fd null(open("/dev/null", O_RDONLY | O_CLOEXEC));
  EXPECT_THAT(check_sealed(null.get(), 0).error().message, HasSubstr("no regular file"));
  const Fd program(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  struct stat st {};
  ASSERT_EQ(fstat(program.get(), &st), 0);
  EXPECT_EQ(check_sealed(program.get(), static_cast<std::uint64_t>(st.st_size)).error().reason,
            Reason::corrupt);
  EXPECT_FALSE(check_sealed(-1, 0));
}

TEST(ManifestBound, HoldsForTheManifestThatIsBuilt) {
  EntryPlan plan = testing::sample_plan();
  const std::size_t sample = plan.images.size();
  for (int i = 0; i < 3000; ++i) {
    const std::string name = std::to_string(100000 + i);
    plan.images[2].tensors.push_back({name, "F32", {1, 2, 3, 4, 5, 6, 7, 8}, 0, 0});
    plan.images.push_back(testing::sample_image("x" + name, FileKind::other, ""));
    plan.left_out.push_back({name, "w"});
  }
  ASSERT_EQ(plan.images.size(), sample + 3000);
  const auto digests = testing::digests_of_heads(plan);
  const auto manifest = build_manifest(plan, digests, Fingerprint{}, Placement{});
  ASSERT_TRUE(manifest) << manifest.error().message;
  EXPECT_LE(manifest->size(), manifest_bound(plan));
  EXPECT_LE(manifest->size() + plan.nbytes(), arena_nbytes(plan));
}

}  // namespace
}  // namespace wcache

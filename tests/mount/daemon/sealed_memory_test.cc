#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "core/sealed.h"
#include "daemon/memory/arena.h"
#include "daemon/memory/pages.h"

namespace wcache {
namespace {

using ::testing::HasSubstr;

constexpr std::uint64_t kHuge = std::uint64_t{2} << 20;
constexpr std::uint64_t kWeights = 16 * kHuge + 12'345;

void add_image(EntryPlan& plan, std::string name, FileKind kind, std::uint64_t nbytes) {
  ImagePlan image;
  image.name = std::move(name);
  image.kind = kind;
  image.nbytes = nbytes;
  plan.images.push_back(std::move(image));
}

EntryPlan sample() {
  EntryPlan plan;
  add_image(plan, "config.json", FileKind::other, 5000);
  add_image(plan, "model.safetensors", FileKind::safetensors, kWeights);
  return plan;
}

bool huge_pages_denied() {
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
  std::string text;
  std::getline(file, text);
  return text.empty() || text.find("[deny]") != std::string::npos;
}

std::uint64_t shmem_kib() {
  std::ifstream file("/proc/meminfo");
  for (std::string key, unit; file >> key;) {
    std::uint64_t value = 0;
    file >> value;
    std::getline(file, unit);
    if (key == "Shmem:") return value;
  }
  return 0;
}

/// An Arena in a private tmpfs; skips where this process has no right to make one.
class SealedTmpfs : public ::testing::Test {
 protected:
  void SetUp() override {
    auto made = Arena::create(sample(), kernel_);
    ASSERT_TRUE(made) << made.error().message;
    if (made->kind() != MemoryKind::tmpfs) GTEST_SKIP() << "needs CAP_SYS_ADMIN: fsopen is refused";
    arena_.emplace(std::move(*made));
    std::memset(arena_->images()[1].data(), 0x5a, kWeights);
  }

  SealedArena seal() {
    auto sealed = std::move(*arena_).seal();
    EXPECT_TRUE(sealed) << sealed.error().message;
    arena_.reset();
    return std::move(*sealed);
  }

  static std::string proc_path(int fd) { return "/proc/self/fd/" + std::to_string(fd); }

  const MemoryKernel kernel_ = MemoryKernel::real();
  std::optional<Arena> arena_;
};

TEST_F(SealedTmpfs, NobodyCanChangeAByte) {
  const SealedArena sealed = seal();
  ASSERT_EQ(sealed.kind, MemoryKind::tmpfs);
  EXPECT_EQ(sealed.note, "");
  const int fd = sealed.images[1].get();
  const std::string path = proc_path(fd);

  const auto refused = [](int rc, int errnum) { return rc == -1 && errno == errnum; };
  EXPECT_TRUE(refused(open(path.c_str(), O_RDWR | O_CLOEXEC), EROFS));
  EXPECT_TRUE(refused(open(path.c_str(), O_RDONLY | O_TRUNC | O_CLOEXEC), EROFS));
  EXPECT_TRUE(refused(fchmod(fd, 0600), EROFS));
  EXPECT_TRUE(refused(chmod(path.c_str(), 0600), EROFS));
  EXPECT_TRUE(refused(truncate(path.c_str(), 1), EROFS));
  EXPECT_TRUE(refused(ftruncate(fd, 1), EINVAL));
  EXPECT_TRUE(refused(static_cast<int>(pwrite(fd, "x", 1, 0)), EBADF));
  EXPECT_TRUE(refused(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), EBADF));
  EXPECT_TRUE(refused(fcntl(fd, F_ADD_SEALS, 0), EPERM));

  EXPECT_EQ(mmap(nullptr, kWeights, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
  auto mapping = Mapping::map(fd, kWeights, PROT_READ, MAP_SHARED, "image");
  ASSERT_TRUE(mapping);
  EXPECT_TRUE(refused(mprotect(mapping->data(), kWeights, PROT_READ | PROT_WRITE), EACCES));
  EXPECT_TRUE(refused(madvise(mapping->data(), kHuge, MADV_REMOVE), EACCES));

  // Through /proc/self/mem with all rights: the kernel gives the writer a page of its own at most.
  const Fd memory(open("/proc/self/mem", O_RDWR | O_CLOEXEC));
  if (memory) {
    const auto at = static_cast<off_t>(reinterpret_cast<std::uintptr_t>(mapping->data()));
    EXPECT_EQ(pwrite(memory.get(), "x", 1, at), -1);
  }
  std::byte first{};
  ASSERT_TRUE(read_exact(fd, std::span(&first, 1), 0, "image"));
  EXPECT_EQ(first, std::byte{0x5a});
}

TEST_F(SealedTmpfs, NobodyGetsTheMountBack) {
  const SealedArena sealed = seal();
  for (int fd : {sealed.images[0].get(), sealed.images[1].get()}) {
    EXPECT_EQ(fspick(fd, "", FSPICK_EMPTY_PATH | FSPICK_CLOEXEC), -1);
    EXPECT_EQ(errno, EINVAL);
    EXPECT_EQ(fspick(AT_FDCWD, proc_path(fd).c_str(), FSPICK_CLOEXEC), -1);
    EXPECT_EQ(syscall(SYS_open_tree, fd, "", AT_EMPTY_PATH | 1 /* OPEN_TREE_CLONE */), -1);
    EXPECT_EQ(errno, EINVAL);
    EXPECT_EQ(mount(nullptr, proc_path(fd).c_str(), nullptr, MS_REMOUNT, nullptr), -1);
    EXPECT_EQ(mount(nullptr, proc_path(fd).c_str(), nullptr, MS_REMOUNT | MS_BIND, nullptr), -1);
  }
  EXPECT_TRUE(check_sealed(sealed.images[1].get(), kWeights));
}

TEST_F(SealedTmpfs, AnUnsealedImageIsRefusedByTheReceiver) {
  // The writable descriptor of image 1 is still open in the arena: found as a peer would get it.
  bool found = false;
  for (int fd = 3; fd < 64; ++fd) {
    struct stat st {};
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size != static_cast<off_t>(kWeights)) continue;
    found = true;
    EXPECT_FALSE(check_sealed(fd, kWeights));
    const Fd reader(open(proc_path(fd).c_str(), O_RDONLY | O_CLOEXEC));
    EXPECT_THAT(check_sealed(reader.get(), kWeights).error().message, HasSubstr("not read-only"));
  }
  EXPECT_TRUE(found);
}

TEST_F(SealedTmpfs, AForgottenWriterIsNoticed) {
  Fd forgotten;
  for (int fd = 3; fd < 64 && !forgotten; ++fd) {
    struct stat st {};
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size == static_cast<off_t>(kWeights))
      forgotten = Fd(open(proc_path(fd).c_str(), O_RDWR | O_CLOEXEC));
  }
  ASSERT_TRUE(forgotten);
  const auto sealed = std::move(*arena_).seal();
  ASSERT_FALSE(sealed);
  EXPECT_EQ(sealed.error().errnum, EBUSY);
  EXPECT_EQ(sealed.error().reason, Reason::internal);
}

TEST_F(SealedTmpfs, WeightsAreMappedByHugeEntries) {
  if (huge_pages_denied()) GTEST_SKIP() << "shmem_enabled is deny: no tmpfs has huge pages";
  const SealedArena sealed = seal();
  EXPECT_EQ(sealed.pages, PageKind::huge);
  auto mapping = Mapping::map(sealed.images[1].get(), kWeights, PROT_READ, MAP_SHARED, "image");
  ASSERT_TRUE(mapping);
  unsigned sum = 0;
  for (std::uint64_t at = 0; at < kWeights; at += page_nbytes())
    sum += std::to_integer<unsigned>(mapping->data()[at]);
  EXPECT_NE(sum, 0u);
  EXPECT_EQ(huge_mapped_nbytes(mapping->data()), kWeights / kHuge * kHuge);

  struct stat st {};
  ASSERT_EQ(fstat(sealed.images[1].get(), &st), 0);
  EXPECT_EQ(static_cast<std::uint64_t>(st.st_blocks) * 512, whole_pages(kWeights));
  ASSERT_EQ(fstat(sealed.images[0].get(), &st), 0);
  EXPECT_EQ(static_cast<std::uint64_t>(st.st_blocks) * 512, whole_pages(5000));
}

TEST_F(SealedTmpfs, TheManifestIsSealedWithTheImages) {
  const std::string text(9000, 'm');
  ASSERT_TRUE(arena_->add_manifest(std::as_bytes(std::span(text))));
  const SealedArena sealed = seal();
  EXPECT_TRUE(check_sealed(sealed.manifest.get(), text.size()));
  std::string read(text.size(), '\0');
  ASSERT_TRUE(read_exact(sealed.manifest.get(), std::as_writable_bytes(std::span(read)), 0, "manifest"));
  EXPECT_EQ(read, text);
}

TEST_F(SealedTmpfs, MemoryIsFreedWithTheLastDescriptor) {
  constexpr std::uint64_t kNbytes = std::uint64_t{256} << 20;
  arena_.reset();
  EntryPlan plan;
  add_image(plan, "m.safetensors", FileKind::safetensors, kNbytes);
  auto arena = Arena::create(plan, kernel_);
  ASSERT_TRUE(arena) << arena.error().message;
  auto sealed = std::move(*arena).seal();
  ASSERT_TRUE(sealed) << sealed.error().message;
  auto mapping = Mapping::map(sealed->images[0].get(), kNbytes, PROT_READ, MAP_SHARED, "image");
  ASSERT_TRUE(mapping);
  struct stat st {};
  ASSERT_EQ(fstat(sealed->images[0].get(), &st), 0);

  // Others on this machine use shared memory too, so the freed bytes are looked for with some tolerance.
  constexpr std::uint64_t kMost = (kNbytes >> 10) * 3 / 4;
  sealed->images.clear();
  EXPECT_EQ(mapping->data()[kNbytes - 1], std::byte{0});  // the mapping alone keeps the memory
  const std::uint64_t before = shmem_kib();
  mapping->reset();
  const std::uint64_t after = shmem_kib();
  EXPECT_GE(before, after + kMost);
}

TEST_F(SealedTmpfs, TheKernelKeepsTheBudget) {
  // One byte more than planned does not fit: the size of the file system is exact.
  auto tmpfs = PrivateTmpfs::create(kernel_, {.nbytes = 3 * page_nbytes(), .files = 2});
  ASSERT_TRUE(tmpfs) << tmpfs.error().message;
  const auto file = tmpfs->create_file("a");
  ASSERT_TRUE(file);
  EXPECT_EQ(fallocate(file->get(), 0, 0, static_cast<off_t>(3 * page_nbytes())), 0);
  EXPECT_EQ(fallocate(file->get(), 0, static_cast<off_t>(3 * page_nbytes()), 1), -1);
  EXPECT_EQ(errno, ENOSPC);
}

}  // namespace
}  // namespace wcache

#include "daemon/holders.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "core/fd.h"
#include "tests/unit/ipc/temporary_directory.h"

namespace wcache {
namespace {

/// A /proc of the test's own.
class HoldersTest : public testing::Test {
 protected:
  void process(const std::string& pid, const std::string& maps, const std::string& cmdline = {}) {
    std::filesystem::create_directories(proc_.file(pid));
    std::ofstream(proc_.file(pid + "/maps")) << maps;
    std::ofstream(proc_.file(pid + "/cmdline")) << cmdline;
    std::ofstream(proc_.file(pid + "/comm")) << "short\n";
  }

  static MappingSearch search() {
    MappingSearch search;
    search.images = {{makedev(0, 0x2f), 17}};
    search.path_part = "/target/0123/";
    search.except = {3};
    return search;
  }

  TemporaryDirectory proc_;
};

constexpr const char* kOther =
    "7f00-7f01 r--p 00000000 00:30 17                         /usr/lib/x.so\n"
    "7f01-7f02 rw-p 00000000 00:00 0 \n"
    "7f02-7f03 r--p 00000000 00:2f 18                         /other image\n";
constexpr const char* kByInode = "7f00-7f01 r--p 00000000 00:2f 17                         /image-0\n";
constexpr const char* kByPath =
    "7f00-7f01 r--s 00000000 00:99 5                          /mnt/w c/target/0123/model.safetensors\n";

TEST_F(HoldersTest, FindsMappingsByInodeAndByPath) {
  process("1", kOther, "init");
  process("20", std::string(kOther) + kByInode, std::string("python\0serve\0", 13));
  process("4", std::string(kOther) + kByPath);
  process("3", kByInode, "ourselves");
  process("self", kByInode);
  process("5", "");
  const MappingScan scan = scan_mappings(proc_.path(), search());
  EXPECT_TRUE(scan.complete);
  EXPECT_EQ(scan.holders, (std::vector<Holder>{{4, "short", 0}, {20, "python serve", 0}}));
}

TEST_F(HoldersTest, FindsTheLastLineOfALongFile) {
  std::string maps;
  for (int i = 0; i < 20000; ++i) maps += kOther;
  process("9", maps + kByInode);
  EXPECT_EQ(scan_mappings(proc_.path(), search()).holders.size(), 1u);
}

TEST_F(HoldersTest, SaysWhenItCannotKnow) {
  EXPECT_FALSE(scan_mappings(proc_.file("absent"), search()).complete);
  // A directory in the place of a file is what root cannot read either.
  process("20", kByInode);
  std::filesystem::create_directories(proc_.file("7/maps"));
  const MappingScan scan = scan_mappings(proc_.path(), search());
  EXPECT_FALSE(scan.complete);
  EXPECT_EQ(scan.holders.size(), 1u);
}

TEST_F(HoldersTest, AProcessThatIsGoneIsNoDoubt) {
  std::filesystem::create_directories(proc_.file("7"));
  EXPECT_TRUE(scan_mappings(proc_.path(), search()).complete);
}

TEST(Holders, TheRealKernelShowsAMapping) {
  const Fd image = Fd::adopt(memfd_create("image", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(image.get(), 4096), 0);
  struct stat st {};
  ASSERT_EQ(fstat(image.get(), &st), 0);
  MappingSearch search;
  search.images = {{st.st_dev, st.st_ino}};
  const auto holds = [&] {
    for (const Holder& holder : scan_mappings("/proc", search).holders)
      if (holder.pid == getpid()) return true;
    return false;
  };
  EXPECT_FALSE(holds());
  {
    const auto mapping = Mapping::map(image.get(), 4096, PROT_READ, MAP_PRIVATE, "image");
    ASSERT_TRUE(mapping);
    EXPECT_TRUE(holds());
  }
  EXPECT_FALSE(holds());
}

}  // namespace
}  // namespace wcache

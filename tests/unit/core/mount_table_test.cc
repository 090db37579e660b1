#include "core/mount_table.h"

#include <gtest/gtest.h>

namespace wcache {
namespace {

constexpr std::string_view kTable =
    "21 1 254:1 / / rw,relatime - ext4 /dev/vda1 rw\n"
    "30 21 0:26 / /run rw,nosuid shared:5 master:1 - tmpfs tmpfs rw,size=4k\n"
    "41 21 0:50 / /mnt/a\\040b\\011c\\134d ro,nosuid,nodev - fuse.wcachefs wcache ro,user_id=0\n"
    "42 41 0:51 / /mnt/twice rw - tmpfs below rw\n"
    "43 42 0:52 / /mnt/twice ro - fuse.other above ro\n"
    "not a line\n"
    "44 21 0:53 / /no-dash rw\n";

TEST(MountTable, ReadsEachLineAndUndoesEscapes) {
  const std::vector<MountEntry> table = parse_mount_table(kTable);
  ASSERT_EQ(table.size(), 5U);
  EXPECT_EQ(table[1].type, "tmpfs");
  EXPECT_EQ(table[2].id, 41);
  EXPECT_EQ(table[2].parent, 21);
  EXPECT_EQ(table[2].device, "0:50");
  EXPECT_EQ(table[2].path, "/mnt/a b\tc\\d");
  EXPECT_EQ(table[2].options, "ro,nosuid,nodev");
  EXPECT_EQ(table[2].type, "fuse.wcachefs");
  EXPECT_EQ(table[2].source, "wcache");
  EXPECT_EQ(table[2].root, "/");
  EXPECT_EQ(table[2].super_options, "ro,user_id=0");
}

TEST(MountTable, FindsTheTopmostMountOfAPath) {
  const std::vector<MountEntry> table = parse_mount_table(kTable);
  const MountEntry* top = mount_at(table, "/mnt/twice");
  ASSERT_NE(top, nullptr);
  EXPECT_EQ(top->source, "above");
  EXPECT_EQ(mount_at(table, "/mnt"), nullptr);
  EXPECT_EQ(mount_at(table, "/mnt/twice/below"), nullptr);
}

TEST(MountTable, ReadsThisProcessesOwn) {
  const auto table = read_mount_table();
  ASSERT_TRUE(table);
  EXPECT_NE(mount_at(*table, "/"), nullptr);
}

}  // namespace
}  // namespace wcache

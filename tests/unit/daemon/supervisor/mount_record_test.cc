#include "daemon/supervisor/mount_record.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/unit/client/temporary_directory.h"

namespace wcache {
namespace {

namespace fs = std::filesystem;

TEST(MountRecord, IsReadAsItWasWritten) {
  const TemporaryDirectory directory;
  const std::string file = directory / "mount.json";
  EXPECT_FALSE(read_mount_record(file));
  const MountRecord record{"/mnt/a \"b\"", true, {"/mnt", "/mnt/a \"b\""}};
  ASSERT_TRUE(write_mount_record(file, record));
  EXPECT_EQ(read_mount_record(file), record);
}

TEST(MountRecord, WhatCannotBeReadIsNone) {
  const TemporaryDirectory directory;
  for (const char* text : {"", "{", "[]", "{\"path\": 1}", "{\"path\": \"/a\", \"created\": []}"}) {
    std::ofstream(directory / "mount.json") << text;
    EXPECT_FALSE(read_mount_record(directory / "mount.json")) << text;
  }
}

TEST(MakeDirectories, RemembersWhatItMadeAndNothingElse) {
  const TemporaryDirectory directory;
  std::vector<std::string> created;
  ASSERT_TRUE(make_directories(directory / "a/b/c", created));
  EXPECT_EQ(created, (std::vector<std::string>{directory / "a", directory / "a/b", directory / "a/b/c"}));
  std::vector<std::string> again;
  ASSERT_TRUE(make_directories(directory / "a/b", again));
  EXPECT_TRUE(again.empty());
  remove_directories(created);
  EXPECT_FALSE(fs::exists(directory / "a"));
  EXPECT_TRUE(fs::exists(directory.path()));
}

TEST(RemoveDirectories, LeavesWhatIsNotEmpty) {
  const TemporaryDirectory directory;
  std::vector<std::string> created;
  ASSERT_TRUE(make_directories(directory / "a/b", created));
  std::ofstream(directory / "a/file") << "x";
  remove_directories(created);
  EXPECT_FALSE(fs::exists(directory / "a/b"));
  EXPECT_TRUE(fs::exists(directory / "a/file"));
}

TEST(ResolveMountPath, ResolvesLinksAsFarAsThePathExists) {
  const TemporaryDirectory directory;
  fs::create_directory(directory / "real");
  fs::create_directory_symlink(directory / "real", directory / "link");
  EXPECT_EQ(resolve_mount_path(directory / "link/new/deep").value(), directory / "real/new/deep");
  EXPECT_EQ(resolve_mount_path(directory / "link/").value(), directory / "real");
  EXPECT_EQ(resolve_mount_path(directory / "real/../real").value(), directory / "real");
  EXPECT_FALSE(resolve_mount_path(""));
}

TEST(CheckMountPath, RefusesWordsThatEnginesReadAsAKindOfDraft) {
  for (const char* path : {"/mnt/eagle-2", "/mnt/x-EAGLE3", "/mnt/DFlash/a", "/mnt/dspark"}) {
    const Status checked = check_mount_path(path);
    ASSERT_FALSE(checked) << path;
    EXPECT_EQ(checked.error().reason, Reason::invalid);
    EXPECT_EQ(checked.error().key, "--mount");
  }
  EXPECT_TRUE(check_mount_path("/nowhere/eagle"));
}

TEST(CheckMountPath, WantsAnEmptyDirectoryOrNone) {
  const TemporaryDirectory directory;
  EXPECT_TRUE(check_mount_path(directory / "new"));
  EXPECT_TRUE(check_mount_path(directory.path()));
  std::ofstream(directory / "file") << "x";
  EXPECT_EQ(check_mount_path(directory.path()).error().key, "--mount");
  EXPECT_EQ(check_mount_path(directory / "file").error().key, "--mount");
  EXPECT_EQ(check_mount_path("/proc").error().reason, Reason::invalid);
}

}  // namespace
}  // namespace wcache

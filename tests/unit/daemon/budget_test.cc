#include "daemon/budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <fstream>

namespace wcache {
namespace {

using ::testing::HasSubstr;

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

/// A directory that plays / of a machine.
class Budget : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/wcache-budget-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    root_ = name;
    write("proc/meminfo",
          "MemTotal:       16777216 kB\nMemFree:         1048576 kB\nMemAvailable:    8388608 kB\n");
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  void write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }

  void version2(const std::string& path, const std::string& own_path, const std::string& mount_root = "/") {
    write("proc/self/cgroup", "0::" + own_path + "\n");
    write("proc/self/mountinfo", "30 21 0:26 " + mount_root + " /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    write("sys/fs/cgroup" + path + "/memory.current", "3221225472\n");
    write(
        "sys/fs/cgroup" + path + "/memory.stat",
        "anon 1073741824\nfile 2147483648\ninactive_file 1073741824\nactive_file 536870912\nslab_reclaimable "
        "536870912\nactive_file_x 99\n");
  }

  Error refusal(std::uint64_t needed, std::optional<std::uint64_t> limit = std::nullopt) {
    const Status status = check_budget(needed, limit, machine_memory_limits(root_));
    EXPECT_FALSE(status);
    return status ? Error{} : status.error();
  }
  bool fits(std::uint64_t needed, std::optional<std::uint64_t> limit = std::nullopt) {
    return check_budget(needed, limit, machine_memory_limits(root_)).has_value();
  }

  std::filesystem::path root_;
};

TEST_F(Budget, WhatFitsIsLeftAlone) {
  EXPECT_TRUE(fits(8 * kGiB));
  EXPECT_TRUE(fits(8 * kGiB, 8 * kGiB));
  EXPECT_TRUE(check_budget(8 * kGiB, std::nullopt, {}));
}

TEST_F(Budget, TheUsersLimitIsNamedWithItsSizeAndTheNeed) {
  const Error error = refusal(2 * kGiB + 1, 2 * kGiB);
  EXPECT_EQ(error.reason, Reason::over_budget);
  EXPECT_EQ(error.key, "memory-limit");
  EXPECT_THAT(error.message, HasSubstr("2147483649 bytes) of memory are needed, and --memory-limit leaves"));
  EXPECT_THAT(error.message, HasSubstr("2147483648 bytes"));
  EXPECT_THAT(error.hint, HasSubstr("raise --memory-limit"));
  EXPECT_EQ(refusal(1, 0).key, "memory-limit");
}

TEST_F(Budget, FreeMemoryIsALimit) {
  const Error error = refusal(8 * kGiB + 1, 100 * kGiB);
  EXPECT_THAT(error.message, HasSubstr("MemAvailable"));
  EXPECT_THAT(error.message, HasSubstr("8589934592 bytes"));
  EXPECT_EQ(error.key, "");
}

TEST_F(Budget, CgroupVersion2CountsReclaimableCacheAsFree) {
  version2("/a/b", "/a/b");
  write("sys/fs/cgroup/a/b/memory.max", "5368709120\n");
  // 5 GiB allowed, 3 used of which 2 can be reclaimed: 4 are left.
  EXPECT_TRUE(fits(4 * kGiB));
  const Error error = refusal(4 * kGiB + 1);
  EXPECT_THAT(error.message, HasSubstr("/sys/fs/cgroup/a/b/memory.max leaves 4"));
  EXPECT_THAT(error.hint, HasSubstr("MemoryMax="));
}

TEST_F(Budget, TheTightestAncestorCounts) {
  version2("/a/b", "/a/b");
  version2("/a", "/a/b");
  write("sys/fs/cgroup/a/b/memory.max", "max\n");
  write("sys/fs/cgroup/a/memory.max", "4294967296\n");
  EXPECT_TRUE(fits(3 * kGiB));
  EXPECT_THAT(refusal(3 * kGiB + 1).message, HasSubstr("/sys/fs/cgroup/a/memory.max"));
  write("sys/fs/cgroup/a/memory.high", "3221225472\n");
  EXPECT_THAT(refusal(2 * kGiB + 1).message, HasSubstr("/sys/fs/cgroup/a/memory.high"));
}

TEST_F(Budget, ACgroupFullerThanItsLimitLeavesNothing) {
  version2("/a", "/a");
  write("sys/fs/cgroup/a/memory.max", "1000\n");
  EXPECT_THAT(refusal(1).message, HasSubstr("leaves 0 B"));
}

TEST_F(Budget, AContainerThatSeesOnlyItsOwnCgroup) {
  version2("", "/docker/123", "/docker/123");
  write("sys/fs/cgroup/memory.max", "2147483648\n");
  EXPECT_THAT(refusal(2 * kGiB).message, HasSubstr("/sys/fs/cgroup/memory.max"));
  // In another namespace /proc names what lies outside with "..": what the mount shows is all there is.
  version2("", "/../../x", "/");
  EXPECT_THAT(refusal(2 * kGiB).message, HasSubstr("/sys/fs/cgroup/memory.max"));
}

TEST_F(Budget, CgroupVersion1) {
  write("proc/self/cgroup", "9:name=systemd:/\n4:cpu,memory:/pods/one\n0::/\n");
  write("proc/self/mountinfo",
        "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"
        "33 31 0:30 / /sys/fs/cgroup/cpuacct rw - cgroup cgroup rw,cpuacct\n"
        "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
        "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
  const std::string group = "sys/fs/cgroup/memory/pods/one/";
  write(group + "memory.limit_in_bytes", "6442450944\n");
  write(group + "memory.usage_in_bytes", "3221225472\n");
  write(group + "memory.stat", "inactive_file 5\ntotal_inactive_file 1073741824\ntotal_active_file 0\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("sys/fs/cgroup/memory/memory.usage_in_bytes", "999999999999\n");
  EXPECT_TRUE(fits(4 * kGiB));
  EXPECT_THAT(refusal(4 * kGiB + 1).message,
              HasSubstr("/sys/fs/cgroup/memory/pods/one/memory.limit_in_bytes"));
}

TEST_F(Budget, AMachineThatTellsNothingHasOnlyTheUsersLimit) {
  std::filesystem::remove_all(root_ / "proc");
  EXPECT_TRUE(machine_memory_limits(root_).empty());
  EXPECT_FALSE(fits(2, 1));
}

TEST(MachineMemory, ThisMachineTellsWhatItHas) {
  const auto limits = machine_memory_limits();
  ASSERT_FALSE(limits.empty());
  EXPECT_THAT(limits[0].name, HasSubstr("MemAvailable"));
  for (const MemoryLimit& limit : limits) EXPECT_LE(limit.available, limit.total) << limit.name;
}

}  // namespace
}  // namespace wcache

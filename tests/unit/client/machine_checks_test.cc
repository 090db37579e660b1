#include "client/machine_checks.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/unit/client/temporary_directory.h"

namespace wcache {
namespace {

using Grade = MachineCheck::Grade;

TEST(CheckFreeMemory, NamesEachLimitAndHintsAtTheTightest) {
  const std::uint64_t gib = std::uint64_t{1} << 30;
  const std::vector<MemoryLimit> limits = {{"memory", 16 * gib, 8 * gib, "free some"},
                                           {"the cgroup limit /x", 4 * gib, gib / 2, "raise it"}};
  const MachineCheck check = check_free_memory(limits);
  EXPECT_EQ(check.grade, Grade::lacking);
  EXPECT_EQ(check.found,
            "8.0 GiB of 16.0 GiB left of memory, 512.0 MiB of 4.0 GiB left of the cgroup limit /x");
  EXPECT_EQ(check.advice, "raise it");
  EXPECT_EQ(check_free_memory({limits[0]}).grade, Grade::ok);
  EXPECT_EQ(check_free_memory({}).grade, Grade::ok);
}

TEST(CheckMount, AHelperIsEnoughAndNothingIsFatal) {
  FuseProbe probe;
  EXPECT_EQ(check_mount(probe).grade, Grade::ok);
  probe.mount = fail_errno("making a FUSE mount", EPERM);
  EXPECT_EQ(check_mount(probe).grade, Grade::fatal);
  probe.helper = "/usr/bin/fusermount3";
  EXPECT_EQ(check_mount(probe).grade, Grade::ok);
  probe.device = fail_errno("/dev/fuse", ENOENT);
  const MachineCheck check = check_mount(probe);
  EXPECT_EQ(check.grade, Grade::fatal);
  EXPECT_FALSE(check.advice.empty());
}

TEST(CheckPassthrough, MissingIsLackingAndSaysWhatToDo) {
  FuseProbe probe;
  EXPECT_EQ(check_passthrough(probe).grade, Grade::ok);
  probe.passthrough = fail_errno("registering memory", EPERM);
  const MachineCheck check = check_passthrough(probe);
  EXPECT_EQ(check.grade, Grade::lacking);
  EXPECT_FALSE(check.advice.empty());
}

TEST(CheckMemoryKind, MakesMemoryOfSomeKindHere) {
  EXPECT_NE(check_memory_kind().grade, Grade::fatal);
}

TEST(CheckRunDir, UnsafeIsFatal) {
  const TemporaryDirectory directory;
  EXPECT_EQ(check_run_dir(directory.path()).grade, Grade::ok);
  EXPECT_EQ(check_run_dir(directory / "absent").grade, Grade::ok);
  std::filesystem::permissions(directory.path(), std::filesystem::perms(0777));
  EXPECT_EQ(check_run_dir(directory.path()).grade, Grade::fatal);
  EXPECT_EQ(check_run_dir(fail(Reason::invalid, "no run directory")).grade, Grade::fatal);
}

}  // namespace
}  // namespace wcache

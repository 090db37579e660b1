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

TEST(CheckGpus, NoDriverIsFineAndEveryOtherTroubleIsLackingWithItsAdvice) {
  const auto check_of = [](DeviceTrouble trouble) {
    const auto checks =
        check_gpus(trouble_report(trouble, Error{Reason::unsupported, "what was wrong", "what to do"}));
    EXPECT_EQ(checks.size(), 1U);
    EXPECT_EQ(checks.front().found, "what was wrong; weights are held in host memory");
    return checks.front();
  };
  EXPECT_EQ(check_of(DeviceTrouble::no_driver).grade, Grade::ok);
  EXPECT_EQ(check_of(DeviceTrouble::no_driver).advice, "");
  for (const DeviceTrouble trouble : {DeviceTrouble::stub, DeviceTrouble::too_old, DeviceTrouble::no_device,
                                      DeviceTrouble::no_start, DeviceTrouble::no_answer}) {
    EXPECT_EQ(check_of(trouble).grade, Grade::lacking) << to_string(trouble);
    EXPECT_EQ(check_of(trouble).advice, "what to do");
  }
}

TEST(CheckGpus, EveryDeviceIsNamedWithWhatItCanBeUsedFor) {
  DeviceReport report;
  report.driver = "13.0";
  const std::uint64_t gib = std::uint64_t{1} << 30;
  report.devices = {{"GPU-1", "NVIDIA X", false, 80 * gib, true, ComputeMode::open},
                    {"GPU-2", "NVIDIA X", false, 80 * gib, false, ComputeMode::open},
                    {"GPU-3", "NVIDIA X", false, 80 * gib, true, ComputeMode::exclusive},
                    {"MIG-4", "NVIDIA X", true, 10 * gib, true, ComputeMode::prohibited}};
  const auto checks = check_gpus(report);
  ASSERT_EQ(checks.size(), 5U);
  EXPECT_EQ(checks[0].found, "a driver of CUDA 13.0 with 4 devices");
  EXPECT_EQ(checks[1].found,
            "GPU-1, NVIDIA X, 80.0 GiB: weights are shared as descriptors (--ipc vmm), or by handles (--ipc "
            "legacy)");
  EXPECT_EQ(checks[1].grade, Grade::ok);
  EXPECT_NE(checks[2].found.find("no descriptors"), std::string::npos);
  EXPECT_NE(checks[3].found.find("exclusive-process"), std::string::npos);
  EXPECT_EQ(checks[3].advice, "nvidia-smi -i GPU-3 -c DEFAULT");
  EXPECT_NE(checks[4].found.find("prohibited"), std::string::npos);
  for (const std::size_t i : {2U, 3U, 4U}) EXPECT_EQ(checks[i].grade, Grade::lacking) << i;
}

TEST(CheckMemoryKind, MakesMemoryOfSomeKindHere) {
  EXPECT_NE(check_memory_kind().grade, Grade::fatal);
}

TEST(CheckRunDir, UnsafeIsFatal) {
  const TemporaryDirectory directory;
  EXPECT_EQ(check_run_dir(directory.path(), "HOST-0").grade, Grade::ok);
  EXPECT_EQ(check_run_dir(directory / "absent", "HOST-0").grade, Grade::ok);
  std::filesystem::permissions(directory.path(), std::filesystem::perms(0777));
  EXPECT_EQ(check_run_dir(directory.path(), "HOST-0").grade, Grade::fatal);
  EXPECT_EQ(check_run_dir(fail(Reason::invalid, "no run directory"), "HOST-0").grade, Grade::fatal);
}

}  // namespace
}  // namespace wcache

#include "daemon/supervisor/device_probe.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "tests/unit/client/temporary_directory.h"

namespace wcache {
namespace {

class DeviceProbes : public testing::Test {
 protected:
  /// A wcached that is this script.
  DeviceProbe probe(const std::string& script) const {
    std::ofstream(directory_ / "wcached") << "#!/bin/sh\n" << script << "\n";
    std::filesystem::permissions(directory_ / "wcached", std::filesystem::perms::owner_all);
    DeviceProbe probe;
    probe.wcached = directory_ / "wcached";
    return probe;
  }
  const TemporaryDirectory directory_;
};

/// A script's words that print a driver of this name.
std::string driver(const std::string& name) {
  return "echo '{\"driver\": \"'\"" + name + "\"'\", \"devices\": []}'";
}

TEST_F(DeviceProbes, GivesWhatWasPrinted) {
  const DeviceReport report = probe("test \"$*\" = --devices && " + driver("13.0")).run();
  EXPECT_FALSE(report.trouble) << report.error.message;
  EXPECT_EQ(report.driver, "13.0");
}

TEST_F(DeviceProbes, AReportMayBeLong) {
  const DeviceReport report = probe("printf '%0300000d' 0 | tr 0 ' '; " + driver("13.0")).run();
  EXPECT_EQ(report.driver, "13.0") << report.error.message;
}

TEST_F(DeviceProbes, TheViewIsAnEnvironment) {
  const DeviceProbe says = probe(driver("${CUDA_VISIBLE_DEVICES-unset} $KEPT"));
  setenv("CUDA_VISIBLE_DEVICES", "3,1", 1);
  setenv("KEPT", "kept", 1);
  EXPECT_EQ(says.run().driver, "3,1 kept");
  EXPECT_EQ(says.run({.as_set = false, .only = ""}).driver, "unset kept");
  EXPECT_EQ(says.run({.as_set = false, .only = "MIG-1"}).driver, "MIG-1 kept");
  unsetenv("CUDA_VISIBLE_DEVICES");
  EXPECT_EQ(says.run().driver, "unset kept");
  unsetenv("KEPT");
}

TEST_F(DeviceProbes, ADriverThatHangsIsNotWaitedFor) {
  DeviceProbe hangs = probe("exec sleep 600");
  hangs.deadline = std::chrono::milliseconds(50);
  const DeviceReport report = hangs.run();
  EXPECT_EQ(report.trouble, DeviceTrouble::no_answer);
  EXPECT_EQ(report.error.message, "the CUDA driver gave no answer within 0 s");
  EXPECT_FALSE(report.error.hint.empty());
}

TEST_F(DeviceProbes, AWaitCanBeStoppedAndWhatHangsIsKilled) {
  const std::string said = directory_ / "pid";
  DeviceProbe hangs = probe("echo $$ >" + said + ".new; mv " + said + ".new " + said + "; exec sleep 600");
  hangs.stop = [&] { return std::filesystem::exists(said); };
  EXPECT_EQ(hangs.run().error.message, "stopped");
  std::string pid;
  std::ifstream(said) >> pid;
  ASSERT_FALSE(pid.empty());
  EXPECT_FALSE(std::filesystem::exists("/proc/" + pid));
}

TEST_F(DeviceProbes, AProcessLeftBehindHoldsNobodyUp) {
  const DeviceReport report =
      probe("sleep 600 & echo $! >" + (directory_ / "pid") + "; " + driver("1")).run();
  EXPECT_EQ(report.driver, "1") << report.error.message;
  pid_t pid = 0;
  std::ifstream(directory_ / "pid") >> pid;
  ASSERT_GT(pid, 0);
  kill(pid, SIGKILL);
}

TEST_F(DeviceProbes, WhatIsNoAnswerIsATrouble) {
  EXPECT_EQ(probe("kill -SEGV $$").run().error.message,
            "asking the CUDA driver for its devices ended with signal 11 (Segmentation fault)");
  EXPECT_EQ(probe("exit 3").run().trouble, DeviceTrouble::no_answer);
  EXPECT_EQ(probe("echo nonsense").run().trouble, DeviceTrouble::no_answer);
  EXPECT_EQ(DeviceProbe{}.run().trouble, DeviceTrouble::no_answer);
  DeviceProbe nowhere;
  nowhere.wcached = "/nowhere/wcached";
  EXPECT_EQ(nowhere.run().trouble, DeviceTrouble::no_answer);
}

}  // namespace
}  // namespace wcache

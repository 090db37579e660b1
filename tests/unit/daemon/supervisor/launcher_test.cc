#include "daemon/supervisor/launcher.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "client/node_status.h"
#include "daemon/budget.h"
#include "daemon/supervisor/made_run_dir.h"
#include "tests/unit/client/temporary_directory.h"

namespace wcache {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

const std::string kPrint = "00112233445566778899aabbccddeeff";

/// A pipe that is read to its end after the launcher has ended. What is written must fit into it.
class Output {
 public:
  Output() {
    std::array<int, 2> ends{};
    EXPECT_EQ(pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK), 0);
    reader_ = Fd::adopt(ends[0]);
    writer_ = Fd::adopt(ends[1]);
  }
  int fd() const { return writer_.get(); }
  const std::string& text() {
    std::array<char, 4096> buffer;
    for (ssize_t got; (got = read(reader_.get(), buffer.data(), buffer.size())) > 0;)
      text_.append(buffer.data(), static_cast<std::size_t>(got));
    return text_;
  }

 private:
  Fd reader_, writer_;
  std::string text_;
};

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

class LauncherTest : public testing::Test {
 protected:
  void SetUp() override {
    StopSignals::block();
    setenv("FAKE_FINGERPRINT", kPrint.c_str(), 1);
    unsetenv("FAKE_WCACHEFS");
  }
  void TearDown() override { StopSignals::unblock(); }

  LaunchPlan plan(bool mounted = true) {
    LaunchPlan plan{.run_dir = make_run_dir(directory_ / "run").value(),
                    .groups = {},
                    .mount = std::nullopt,
                    .timeout = std::nullopt,
                    .device_asked = false,
                    .log_level = {},
                    .wcached = FAKE_WCACHED_PROGRAM,
                    .wcachefs = FAKE_WCACHEFS_PROGRAM};
    GroupPlan group;
    group.model = "/models/model";
    group.name = "model";
    group.ranks = {{0, "HOST-0"}};
    plan.groups.push_back(group);
    if (mounted) plan.mount = MountPlan{mount(), true, false};
    return plan;
  }
  std::string mount() const { return directory_ / "a/mount"; }
  std::string log() const { return directory_ / "log"; }

  /// A target and its draft, each on a device.
  LaunchPlan pair_on(const std::string& device, const std::string& other) {
    LaunchPlan two = plan(false);
    two.groups[0].ranks = {{.device_uuid = device, .ipc = DeviceIpc::vmm}};
    two.groups.push_back(two.groups[0]);
    two.groups[1].role = Role::draft0;
    two.groups[1].ranks[0].device_uuid = other;
    return two;
  }

  /// Runs a launcher to its end. `meanwhile` runs on another thread; what it returns is sent as a signal to
  /// this process.
  int run(LaunchPlan plan, const std::string& daemon, const std::function<int()>& meanwhile = {}) {
    setenv("FAKE_WCACHED", daemon.c_str(), 1);
    Console console(out_.fd(), err_.fd(), 0);
    const StopSignals signals = StopSignals::open().value();
    std::thread thread([&] {
      if (const int number = meanwhile ? meanwhile() : 0; number != 0) kill(getpid(), number);
    });
    const Result<int> code = Launcher(std::move(plan), console, signals).run();
    thread.join();
    return code ? *code : -1;
  }

  /// Waits until `seen` holds of what the launcher has printed and the node says.
  bool eventually(const std::function<bool()>& seen) {
    for (const Deadline end = deadline_in(20s); remaining_ms(end) > 0; std::this_thread::sleep_for(10ms)) {
      if (seen()) return true;
    }
    return false;
  }
  bool printed(const std::string& text) { return out_.text().find(text) != std::string::npos; }
  bool noted(const std::string& text) { return err_.text().find(text) != std::string::npos; }
  NodeStatus node() { return collect_status(directory_ / "run").value(); }

  void expect_nothing_left() {
    EXPECT_FALSE(fs::exists(directory_ / "run"));
    EXPECT_FALSE(fs::exists(directory_ / "a"));
  }

  const TemporaryDirectory directory_;
  Output out_, err_;
};

TEST_F(LauncherTest, SaysReadyOnceTheDirectoryIsThereAndEndsWith0) {
  const int code = run(plan(), "ready", [&] {
    EXPECT_TRUE(eventually([&] { return printed("\n"); }));
    EXPECT_TRUE(fs::is_directory(mount() + "/target/" + kPrint));
    const NodeStatus status = node();
    EXPECT_EQ(status.groups.size(), 1U);
    EXPECT_EQ(status.launchers.size(), 1U);
    return SIGINT;
  });
  EXPECT_EQ(code, 0);
  EXPECT_EQ(out_.text(), "READY target " + kPrint + " " + mount() + "/target/" + kPrint + "\n");
  expect_nothing_left();
}

TEST_F(LauncherTest, WithoutAMountThePathIsADash) {
  EXPECT_EQ(run(plan(false), "ready",
                [&] {
                  EXPECT_TRUE(eventually([&] { return printed("\n"); }));
                  return SIGTERM;
                }),
            0);
  EXPECT_EQ(out_.text(), "READY target " + kPrint + " -\n");
  expect_nothing_left();
}

TEST_F(LauncherTest, StoppedBeforeReadyItEndsWithTheSignal) {
  const int code = run(plan(false), "hang", [&] {
    EXPECT_TRUE(
        eventually([&] { return !node().groups.empty() && node().groups[0].state == State::filling; }));
    kill(getpid(), SIGTERM);
    std::this_thread::sleep_for(1500ms);
    return SIGTERM;  // again: the daemon ignores the first
  });
  EXPECT_EQ(code, 128 + SIGTERM);
  EXPECT_EQ(out_.text(), "");
  expect_nothing_left();
}

TEST_F(LauncherTest, ASignalThatComesTwiceAtOnceCountsOnce) {
  const int code = run(plan(false), "slow-to-end", [&] {
    EXPECT_TRUE(eventually([&] { return printed("\n"); }));
    kill(getpid(), SIGTERM);
    std::this_thread::sleep_for(50ms);
    return SIGTERM;  // timeout(1) sends it to its child, and to its process group
  });
  EXPECT_EQ(code, 0);
  EXPECT_FALSE(noted("killing daemons")) << err_.text();
  expect_nothing_left();
}

TEST_F(LauncherTest, AFailedGroupEndsItWithTheFirstError) {
  EXPECT_EQ(run(plan(false), "corrupt"), 1);
  EXPECT_EQ(out_.text(), "");
  EXPECT_TRUE(noted("FAILED target corrupt: model.safetensors: hole\n"));
  expect_nothing_left();
}

TEST_F(LauncherTest, ADaemonThatDiesIsNamed) {
  EXPECT_EQ(run(plan(false), "die"), 1);
  EXPECT_TRUE(noted("FAILED target internal: wcached of target rank 0 (pid "));
  EXPECT_TRUE(noted("ended before it was ready: exit code 3"));
}

TEST_F(LauncherTest, ADaemonThatSendsGarbageIsGivenUp) {
  EXPECT_EQ(run(plan(false), "garbage"), 1);
  EXPECT_TRUE(noted("sent an unexpected message"));
  expect_nothing_left();
}

TEST_F(LauncherTest, AGroupThatTakesTooLongIsGivenUp) {
  LaunchPlan impatient = plan(false);
  impatient.timeout = 1s;
  const int code = run(std::move(impatient), "hang", [&] {
    EXPECT_TRUE(eventually([&] { return noted("FAILED target timeout: not ready within 1 s"); }));
    return SIGTERM;  // kills the daemon that does not listen
  });
  EXPECT_EQ(code, 5);
}

TEST_F(LauncherTest, GroupsThatStartTogetherMustFitTogether) {
  const std::vector<MemoryLimit> limits = machine_memory_limits();
  ASSERT_FALSE(limits.empty());
  LaunchPlan two = plan(false);
  two.groups[0].ranks[0].memory = limits[0].available * 2 / 3;
  two.groups.push_back(two.groups[0]);
  two.groups[1].role = Role::draft0;
  const int code = run(std::move(two), "ready", [&] {
    EXPECT_TRUE(eventually([&] { return printed("\n") && noted("FAILED"); }));
    return SIGINT;
  });
  EXPECT_EQ(code, 0);
  EXPECT_EQ(out_.text(), "READY target " + kPrint + " -\n");
  EXPECT_TRUE(noted("FAILED draft0 over-budget: ")) << err_.text();
}

TEST_F(LauncherTest, OnOneDeviceTheTargetTakesItsMemoryFirst) {
  setenv("FAKE_LOG", log().c_str(), 1);
  LaunchPlan two = pair_on("GPU-0", "GPU-0");
  const int code = run(std::move(two), "in-turn", [&] {
    EXPECT_TRUE(eventually([&] { return printed("READY draft0") && printed("READY target"); }));
    return SIGINT;
  });
  EXPECT_EQ(code, 0);
  EXPECT_EQ(text_of(log()), "target starts\ntarget fills\ndraft0 starts\ndraft0 fills\n");
}

TEST_F(LauncherTest, OnDevicesOfTheirOwnGroupsStartTogether) {
  setenv("FAKE_LOG", log().c_str(), 1);
  const int code = run(pair_on("GPU-0", "GPU-1"), "together", [&] {
    EXPECT_TRUE(eventually([&] { return printed("READY draft0") && printed("READY target"); }));
    return SIGINT;
  });
  EXPECT_EQ(code, 0);
}

TEST_F(LauncherTest, AGroupThatWaitsForADeviceIsKnownAndStartsOnceTheOtherHasFailed) {
  int known = 0;
  LaunchPlan two = pair_on("GPU-0", "GPU-0");
  two.timeout = 1s;
  const int code = run(std::move(two), "hang-before", [&] {
    EXPECT_TRUE(eventually([&] { return (known = static_cast<int>(node().groups.size())) == 2; }));
    EXPECT_TRUE(eventually([&] { return noted("FAILED target timeout") && noted("FAILED draft0 timeout"); }));
    return 0;
  });
  EXPECT_EQ(known, 2);
  EXPECT_EQ(code, 5);
}

TEST_F(LauncherTest, EvictedItEndsWith0) {
  EXPECT_EQ(run(plan(), "evicted"), 0);
  EXPECT_TRUE(noted("was evicted"));
  expect_nothing_left();
}

TEST_F(LauncherTest, ADaemonLostAfterReadyIsSaidAndTheMountStays) {
  const int code = run(plan(), "ready-then-die", [&] {
    EXPECT_TRUE(eventually([&] { return noted("the mount still serves target/" + kPrint); }));
    EXPECT_EQ(node().groups.at(0).state, State::orphaned);
    EXPECT_TRUE(fs::exists(mount()));
    return SIGINT;
  });
  EXPECT_EQ(code, 0);
  expect_nothing_left();
}

TEST_F(LauncherTest, ADaemonLostWithoutAMountIsAFailure) {
  EXPECT_EQ(run(plan(false), "ready-then-die"), 1);
  EXPECT_TRUE(noted("FAILED target internal"));
}

TEST_F(LauncherTest, AMountThatCannotBeMadeEndsItBeforeReady) {
  setenv("FAKE_WCACHEFS", "refuse", 1);
  EXPECT_EQ(run(plan(), "ready"), 2);
  EXPECT_EQ(out_.text(), "");
  EXPECT_TRUE(noted("ended before it had mounted: exit code 2"));
  expect_nothing_left();
}

TEST_F(LauncherTest, AKilledWcachefsIsReplaced) {
  const int code = run(plan(), "ready", [&] {
    EXPECT_TRUE(eventually([&] { return printed("\n"); }));
    const std::int32_t first = node().mount.value().pid;
    kill(first, SIGKILL);
    EXPECT_TRUE(eventually([&] {
      const NodeStatus now = node();
      return now.mount && now.mount->pid != first;
    }));
    EXPECT_TRUE(noted("signal 9 (Killed); starting another"));
    return SIGINT;
  });
  EXPECT_EQ(code, 0);
  expect_nothing_left();
}

}  // namespace
}  // namespace wcache

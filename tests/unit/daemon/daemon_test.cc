#include "daemon/daemon.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <spdlog/sinks/null_sink.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <thread>

#include "tests/unit/ipc/temporary_directory.h"

namespace wcache {
namespace {

using namespace std::chrono_literals;

/// A daemon in a process of its own, with this load.
pid_t start_daemon(const RunDir& run_dir, const Daemon::Load& load) {
  const pid_t child = fork();
  if (child != 0) return child;
  sigset_t ending;
  sigemptyset(&ending);
  sigaddset(&ending, SIGTERM);
  sigprocmask(SIG_BLOCK, &ending, nullptr);
  const Fd signals = Fd::adopt(signalfd(-1, &ending, SFD_CLOEXEC | SFD_NONBLOCK));
  spdlog::logger log("test", std::make_shared<spdlog::sinks::null_sink_mt>());
  const auto loop = EventLoop::create();
  int code = 99;
  {
    Daemon daemon(DaemonOptions{}, run_dir, signals.get(), std::nullopt, **loop, log, load);
    code = daemon.run().exit_code();
  }
  _exit(code);
}

int wait_for(pid_t child) {
  for (int i = 0; i < 2000; ++i) {
    int status = 0;
    if (waitpid(child, &status, WNOHANG) == child)
      return WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
    std::this_thread::sleep_for(10ms);
  }
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  return -1;
}

TEST(Daemon, AFailedLoadIsItsExitCode) {
  const TemporaryDirectory dir;
  const RunDir run_dir = *RunDir::open(dir.path());
  const pid_t child = start_daemon(
      run_dir, [](const LoadRequest&, const LoadEvents&, std::stop_token) -> Result<StoredEntry> {
        return fail(Reason::over_budget, "too big");
      });
  EXPECT_EQ(wait_for(child), 7);
}

// The disk is dead and the read never ends: the daemon ends all the same, and takes its lock along.
TEST(Daemon, ALoadThatHangsIsLeftBehind) {
  const TemporaryDirectory dir;
  const RunDir run_dir = *RunDir::open(dir.path());
  const pid_t child = start_daemon(
      run_dir, [](const LoadRequest&, const LoadEvents& events, std::stop_token) -> Result<StoredEntry> {
        if (!events.known(Fingerprint{})) return fail(Reason::internal, "no lock");
        for (;;) std::this_thread::sleep_for(1h);
      });
  const std::string lock = run_dir.rank_socket(Role::target, Fingerprint{}, "HOST-0") + ".lock";
  for (int i = 0; i < 500 && !std::filesystem::exists(lock); ++i) std::this_thread::sleep_for(10ms);
  ASSERT_TRUE(std::filesystem::exists(lock));
  kill(child, SIGTERM);
  EXPECT_EQ(wait_for(child), 0);
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

}  // namespace
}  // namespace wcache

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "core/fd.h"
#include "core/log.h"
#include "fs/options.h"
#include "fs/server.h"
#include "ipc/run_dir.h"

namespace {

using wcache::Error;
using wcache::Fd;
using wcache::Options;
using wcache::Result;
using wcache::RunDir;
using wcache::Status;

constexpr char kMounted = 'm';

int report(const Error& error) {
  std::fprintf(stderr, "wcachefs: %s\n", error.message.c_str());
  if (!error.hint.empty()) std::fprintf(stderr, "wcachefs: %s\n", error.hint.c_str());
  return wcache::exit_code(error.reason);
}

Result<RunDir> open_run_dir(const Options& options) {
  if (options.run_dir) return RunDir::create(*options.run_dir);
  Result<std::string> path = RunDir::default_path(geteuid(), RunDir::process_environment);
  if (!path) return wcache::fail(std::move(path.error()));
  return RunDir::create(*path);
}

/// `tell` is the parent's pipe, for who runs in the background.
int run(const Options& options, const RunDir& run_dir, const sigset_t& signals, Fd tell) {
  wcache::LogOptions log_options{"wcachefs", options.log_level, STDERR_FILENO, {}};
  if (tell) {
    log_options.stream = -1;
    log_options.file = run_dir.file("wcachefs.log");
  }
  Result<std::shared_ptr<spdlog::logger>> log = wcache::make_logger(log_options);
  if (!log) return report(log.error());
  const Status served = wcache::serve_mount(options, run_dir, signals, **log, [&] {
    if (!tell) return;
    const Fd null = Fd::adopt(open("/dev/null", O_RDWR | O_CLOEXEC));
    for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(null.get(), stream);
    if (write(tell.get(), &kMounted, 1) != 1) (*log)->warn("the starting process is gone");
    tell.reset();
  });
  if (served) return 0;
  (*log)->error("{}", served.error().message);
  return tell || !options.foreground ? report(served.error()) : wcache::exit_code(served.error().reason);
}

/// The parent's part: ends when the child has mounted, or with the child's exit status.
int wait_until_mounted(pid_t child, const Fd& told) {
  char word = 0;
  if (read(told.get(), &word, 1) == 1 && word == kMounted) return 0;
  int status = 0;
  if (waitpid(child, &status, 0) == child && WIFEXITED(status)) return WEXITSTATUS(status);
  std::fprintf(stderr, "wcachefs: the serving process died before it had mounted\n");
  return 1;
}

int run_in_background(const Options& options, const RunDir& run_dir, const sigset_t& signals) {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return report(wcache::errno_error("pipe", errno));
  Fd told = Fd::adopt(ends[0]);
  Fd tell = Fd::adopt(ends[1]);
  const pid_t child = fork();
  if (child < 0) return report(wcache::errno_error("fork", errno));
  if (child > 0) {
    tell.reset();
    // Signals are for the one who waits as well: let them end this process, the child has its own session.
    sigprocmask(SIG_UNBLOCK, &signals, nullptr);
    return wait_until_mounted(child, told);
  }
  told.reset();
  setsid();
  if (chdir("/") != 0) return report(wcache::errno_error("chdir", errno));
  return run(options, run_dir, signals, std::move(tell));
}

}  // namespace

int main(int argc, char** argv) {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&signals, signal);
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);

  Result<wcache::ParsedOptions> parsed = wcache::parse_options({argv + 1, argv + argc});
  if (!parsed) return report(parsed.error());
  if (parsed->text) {
    std::fputs(parsed->text->text.c_str(), stdout);
    return 0;
  }
  Options& options = parsed->options;
  Result<RunDir> run_dir = open_run_dir(options);
  if (!run_dir) return report(run_dir.error());
  return options.foreground ? run(options, *run_dir, signals, Fd())
                            : run_in_background(options, *run_dir, signals);
}

#include "daemon/supervisor/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <utility>

namespace wcache {
namespace {

// By number: glibc 2.36's declarations of pidfd_open and pidfd_send_signal clash with <linux/pidfd.h> in
// places.
int open_pidfd(pid_t pid) {
  return static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
}

/// Owns what posix_spawn takes.
struct SpawnPlan {
  posix_spawn_file_actions_t actions{};
  posix_spawnattr_t attributes{};
  SpawnPlan() {
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
  }
  ~SpawnPlan() {
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
  }
  SpawnPlan(const SpawnPlan&) = delete;
  SpawnPlan& operator=(const SpawnPlan&) = delete;
};

/// 0, or the error number of the first step that failed.
int prepare(SpawnPlan& plan, const StartOptions& options) {
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  int error = posix_spawnattr_setflags(
      &plan.attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  if (error == 0) error = posix_spawnattr_setpgroup(&plan.attributes, 0);
  if (error == 0) error = posix_spawnattr_setsigmask(&plan.attributes, &none);
  if (error == 0) error = posix_spawnattr_setsigdefault(&plan.attributes, &all);
  if (error == 0) error = posix_spawn_file_actions_addopen(&plan.actions, 0, "/dev/null", O_RDONLY, 0);
  if (error == 0)
    error = posix_spawn_file_actions_adddup2(&plan.actions, options.output < 0 ? 2 : options.output, 1);
  for (const int fd : options.inherited) {  // dup2 onto itself takes close-on-exec away
    if (error == 0) error = posix_spawn_file_actions_adddup2(&plan.actions, fd, fd);
  }
  return error;
}

/// What exec takes: pointers into `words`, and their end.
std::vector<char*> pointers_to(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

std::string ExitStatus::describe() const {
  if (!child) return "ended";
  if (signal == 0) return "exit code " + std::to_string(code);
  return "signal " + std::to_string(signal) + " (" + strsignal(signal) + ")";
}

Result<Process> Process::start(const std::string& program, const std::vector<std::string>& arguments,
                               const StartOptions& options) {
  SpawnPlan plan;
  if (const int error = prepare(plan, options); error != 0)
    return fail_errno("preparing to start " + program, error);
  std::vector<std::string> words;
  words.push_back(program);
  words.insert(words.end(), arguments.begin(), arguments.end());
  const std::vector<char*> argv = pointers_to(words);
  std::vector<std::string> variables = options.environment.value_or(std::vector<std::string>());
  const std::vector<char*> envp = pointers_to(variables);
  pid_t pid = 0;
  if (const int error = posix_spawn(&pid, program.c_str(), &plan.actions, &plan.attributes, argv.data(),
                                    options.environment ? envp.data() : environ);
      error != 0)
    return fail_errno("starting " + program, error);
  Fd pidfd = Fd::adopt(open_pidfd(pid));
  if (!pidfd) {
    const int error = errno;
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    return fail_errno("watching " + program, error);
  }
  return Process(pid, std::move(pidfd), true);
}

Result<Process> Process::attach(pid_t pid) {
  Fd pidfd = Fd::adopt(open_pidfd(pid));
  if (!pidfd && errno == ESRCH)
    return fail(Reason::not_running, "process " + std::to_string(pid) + " has ended");
  if (!pidfd) return fail_errno("watching process " + std::to_string(pid), errno);
  return Process(pid, std::move(pidfd), false);
}

std::optional<ExitStatus> Process::ended() const {
  return wait(Deadline{});
}

std::optional<ExitStatus> Process::wait(Deadline deadline) const {
  if (ended_) return ended_;
  for (;;) {
    pollfd item{pidfd_.get(), POLLIN, 0};
    const int ready = poll(&item, 1, remaining_ms(deadline));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return std::nullopt;
    break;
  }
  ExitStatus status;
  status.child = child_;
  if (child_) {
    siginfo_t info{};
    // P_PIDFD's value; older headers lack the name. ECHILD (SIGCHLD ignored by our caller) leaves code 0.
    if (waitid(static_cast<idtype_t>(3), static_cast<id_t>(pidfd_.get()), &info, WEXITED) == 0) {
      if (info.si_code == CLD_EXITED)
        status.code = info.si_status;
      else
        status.signal = info.si_status;
    }
  }
  ended_ = status;
  return ended_;
}

void Process::signal(int number) const {
  if (!ended_) syscall(SYS_pidfd_send_signal, pidfd_.get(), number, nullptr, 0);
}

Result<std::string> find_program(const std::string& name, const std::string& own_directory,
                                 const std::string& path) {
  const auto runs = [](const std::string& file) {
    std::error_code error;
    return std::filesystem::is_regular_file(file, error) && access(file.c_str(), X_OK) == 0;
  };
  if (const std::string beside = own_directory + "/" + name; runs(beside)) return beside;
  std::istringstream directories(path);
  for (std::string directory; std::getline(directories, directory, ':');) {
    if (directory.empty() || directory[0] != '/') continue;
    if (const std::string found = directory + "/" + name; runs(found)) return found;
  }
  return fail(Reason::not_found,
              "the program " + name + " is neither in " + own_directory + " nor on the PATH",
              "install wcache as a whole, or put the directory of " + name + " on the PATH");
}

Result<std::string> program_directory() {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return fail_errno("reading /proc/self/exe", error.value());
  return self.parent_path().string();
}

}  // namespace wcache

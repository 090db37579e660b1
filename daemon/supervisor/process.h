#pragma once

#include <sys/types.h>

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/fd.h"
#include "core/result.h"
#include "ipc/deadline.h"

namespace wcache {

/// How a process ended.
struct ExitStatus {
  int code = 0;    ///< what it returned; meaningless when `signal` is not 0
  int signal = 0;  ///< what killed it; 0 when it returned. Both are 0 too for a process that is not our child
  bool child = true;

  bool clean() const { return child && signal == 0 && code == 0; }
  std::string describe() const;  ///< "exit code 7", "signal 9 (Killed)", "ended"
};

/// What a started process gets other than by default.
struct StartOptions {
  std::span<const int> inherited = {};  ///< descriptors above 2 that it has under the same numbers; borrowed
  int output = -1;                      ///< borrowed: its standard output; -1: its standard error
  std::optional<std::vector<std::string>> environment = {};  ///< "NAME=value"; nullopt: this process's
};

/// A process that is watched and may be signalled, by pidfd: a pid that was given to another process in the
/// meantime is never hit. It need not be a child. The destructor only lets go of it: the process goes on.
class Process {
 public:
  /// Starts `program` (a path; no search) with arguments after argv[0]. The child has a process group of its
  /// own, an empty signal mask, default dispositions and /dev/null as standard input.
  static Result<Process> start(const std::string& program, const std::vector<std::string>& arguments,
                               const StartOptions& options = {});

  /// A process that somebody else started. Gone already: not_running.
  static Result<Process> attach(pid_t pid);

  pid_t pid() const { return pid_; }
  /// Readable once the process has ended; for poll(2).
  int fd() const { return pidfd_.get(); }

  /// nullopt while it runs. Reaps a child. Once it has ended every call gives the same answer.
  std::optional<ExitStatus> ended() const;

  /// The same, waiting for it until the deadline.
  std::optional<ExitStatus> wait(Deadline deadline) const;

  /// Nothing happens when it has ended.
  void signal(int number) const;

 private:
  Process(pid_t pid, Fd pidfd, bool child) : pid_(pid), pidfd_(std::move(pidfd)), child_(child) {}

  pid_t pid_ = 0;
  Fd pidfd_;
  bool child_ = false;
  mutable std::optional<ExitStatus> ended_;
};

/// Where `name` is: beside the running program (`own_directory`), else in the directories of `path` (as
/// $PATH). not_found names both places.
Result<std::string> find_program(const std::string& name, const std::string& own_directory,
                                 const std::string& path);

/// The directory of the running program (/proc/self/exe).
Result<std::string> program_directory();

}  // namespace wcache

#pragma once

#include <functional>
#include <string>
#include <utility>

#include "core/fd.h"
#include "core/result.h"
#include "ipc/deadline.h"

namespace wcache {

/// Who is here: every launcher of a run directory holds flock(2) on "launchers.lock", shared. The last to go
/// takes it exclusively, and clears up what belongs to no launcher (the mount); launchers that come meanwhile
/// wait for it. The file is removed by the last holder while it has the lock; who takes the lock checks that
/// the file it locked is still the one of that name.
class LaunchersLock {
 public:
  /// Waits while a last launcher clears up; `interrupted` is asked every few milliseconds. timeout past the
  /// deadline or once `interrupted` says so.
  static Result<LaunchersLock> share(std::string path, Deadline deadline,
                                     const std::function<bool()>& interrupted);

  LaunchersLock(LaunchersLock&&) noexcept = default;
  LaunchersLock& operator=(LaunchersLock&&) = delete;
  ~LaunchersLock();

  /// True when no other launcher is here: the lock is exclusive from now on. False when another is: this one
  /// does not count any more.
  bool become_last();

 private:
  LaunchersLock(std::string path, Fd file) : path_(std::move(path)), file_(std::move(file)) {}

  std::string path_;
  Fd file_;
  bool last_ = false;
};

}  // namespace wcache

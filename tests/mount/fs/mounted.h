#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/fd.h"
#include "ipc/protocol.h"
#include "ipc/run_dir.h"
#include "tests/mount/fs/fake_daemon.h"
#include "tests/support/descriptors.h"

namespace wcache::test {

/// A real wcachefs on a temporary directory, in a mount namespace of the test's own. Everything is gone
/// afterwards, whatever the test did.
class MountTest : public testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;

  /// Starts `wcachefs <mount> -f -o run_dir=…,<options>` and waits until its socket answers. Skips the test
  /// where this machine cannot mount.
  void start(const std::string& options = {});
  /// Runs `body` as a user without rights, who has /dev/fuse and fusermount3, in a process of its own: the
  /// test's checks work there. Skips the test where that cannot be had.
  void as_nobody(const std::function<void()>& body);

  /// Runs it with exactly these arguments and waits for its end: exit status and standard error.
  struct Ended {
    int status = -1;
    std::string error;
  };
  Ended run_to_end(const std::vector<std::string>& arguments) const;
  /// Sends `signal` and waits for the end; the exit status, or 128 + the signal that killed it.
  int end(int signal);

  const RunDir& run_dir() const { return *run_dir_; }
  const std::string& mount() const { return mount_; }
  pid_t pid() const { return pid_; }
  MountStatus status() const;
  StatusReply whole_status() const;

  /// Where an entry's directory is, once it has appeared.
  std::string entry(const TestEntry& entry, Role role = Role::target) const;
  std::string entry(const FakeDaemon& daemon, Role role = Role::target) const {
    return entry(daemon.entry(), role);
  }

 private:
  std::string root_, mount_;
  std::optional<RunDir> run_dir_;
  pid_t pid_ = -1;
  bool device_mounted_ = false;
};

/// Until `condition` holds, at most 10 s.
bool eventually(const std::function<bool()>& condition);

std::string read_file(const std::string& path);
std::set<std::string> list(const std::string& directory);
bool exists(const std::string& path);
/// Mounts of wcachefs at `path`, dead ones included.
std::size_t mounts_at(const std::string& path);

struct Xattr {
  std::string value;
  int errnum = 0;
};
Xattr get_xattr(const std::string& path, const std::string& name);

}  // namespace wcache::test

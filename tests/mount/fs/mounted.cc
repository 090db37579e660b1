#include "tests/mount/fs/mounted.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>

#include "core/mount_table.h"
#include "ipc/client.h"

namespace wcache::test {
namespace {

constexpr std::chrono::seconds kWait{10};

/// Mounts of the test are seen by the test and its children only.
void enter_own_namespace() {
  static const bool done =
      unshare(CLONE_NEWNS) == 0 && ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
  if (!done) return;  // without the rights fusermount3 mounts, and TearDown unmounts
}

constexpr uid_t kNobody = 65534;

pid_t spawn(std::vector<std::string> arguments, int error_fd) {
  std::vector<char*> argv;
  arguments.insert(arguments.begin(), WCACHEFS);
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  const pid_t pid = fork();
  if (pid == 0) {
    if (error_fd >= 0) dup2(error_fd, STDERR_FILENO);
    execv(argv[0], argv.data());
    _exit(127);
  }
  return pid;
}

int wait_status(pid_t pid) {
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

void MountTest::SetUp() {
  enter_own_namespace();
  std::string pattern = "/tmp/wcachefs-test-XXXXXX";
  root_ = mkdtemp(pattern.data());
  mount_ = root_ + "/mnt";
  std::filesystem::create_directory(mount_);
  Result<RunDir> run_dir = RunDir::create(root_ + "/run");
  ASSERT_TRUE(run_dir) << run_dir.error().message;
  run_dir_ = *run_dir;
}

void MountTest::as_nobody(const std::function<void()>& body) {
  struct stat helper {};
  if (getuid() != 0 || stat("/usr/bin/fusermount3", &helper) != 0 || (helper.st_mode & S_ISUID) == 0)
    GTEST_SKIP() << "needs root to begin with, and a setuid fusermount3";
  // Machines with udev give every user the device.
  const std::string device = root_ + "/fuse";
  const bool made = mknod(device.c_str(), S_IFCHR | 0666, makedev(10, 229)) == 0 &&
                    chmod(device.c_str(), 0666) == 0 &&
                    ::mount(device.c_str(), "/dev/fuse", nullptr, MS_BIND, nullptr) == 0;
  if (!made) GTEST_SKIP() << "cannot make a device that every user may open";
  device_mounted_ = true;
  ASSERT_EQ(chmod(root_.c_str(), 0755), 0);
  for (const std::string& path : {mount_, run_dir_->path()})
    ASSERT_EQ(chown(path.c_str(), kNobody, kNobody), 0);
  fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    if (setgid(kNobody) != 0 || setuid(kNobody) != 0) _exit(1);
    body();
    if (pid_ > 0) end(SIGKILL);
    fflush(nullptr);
    _exit(HasFailure() ? 1 : 0);
  }
  EXPECT_EQ(wait_status(child), 0) << "see the failures above";
}

void MountTest::TearDown() {
  if (device_mounted_) umount2("/dev/fuse", MNT_DETACH);
  if (pid_ > 0) end(SIGKILL);
  while (umount2(mount_.c_str(), MNT_DETACH) == 0) continue;
  std::filesystem::remove_all(root_);
}

void MountTest::start(const std::string& options) {
  if (access("/dev/fuse", R_OK | W_OK) != 0) GTEST_SKIP() << "no access to /dev/fuse";
  pid_ = spawn({mount_, "-f", "-o",
                "log_level=warning,run_dir=" + run_dir_->path() + (options.empty() ? "" : ",") + options},
               -1);
  int status = 0;
  const bool up = eventually([&] {
    return waitpid(pid_, &status, WNOHANG) == pid_ ||
           Client::connect(run_dir_->mount_socket(), Purpose::command, "test", deadline_in(kWait))
               .has_value();
  });
  ASSERT_TRUE(up);
  ASSERT_EQ(kill(pid_, 0), 0) << "wcachefs ended with " << status;
}

MountTest::Ended MountTest::run_to_end(const std::vector<std::string>& arguments) const {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return {};
  const pid_t pid = spawn(arguments, ends[1]);
  close(ends[1]);
  Ended ended;
  char buffer[4096];
  for (ssize_t n = 0; (n = read(ends[0], buffer, sizeof buffer)) > 0;)
    ended.error.append(buffer, static_cast<std::size_t>(n));
  close(ends[0]);
  ended.status = wait_status(pid);
  return ended;
}

int MountTest::end(int signal) {
  kill(pid_, signal);
  const int status = wait_status(pid_);
  pid_ = -1;
  return status;
}

StatusReply MountTest::whole_status() const {
  Result<Client> client =
      Client::connect(run_dir_->mount_socket(), Purpose::command, "test", deadline_in(kWait));
  if (!client) return {};
  return client->status(deadline_in(kWait)).value_or(StatusReply{});
}

MountStatus MountTest::status() const {
  return whole_status().mount;
}

std::string MountTest::entry(const TestEntry& entry, Role role) const {
  const std::string path = mount_ + "/" + std::string(to_string(role)) + "/" + entry.directory();
  EXPECT_TRUE(eventually([&] { return exists(path); })) << path << " does not appear";
  return path;
}

bool eventually(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + kWait;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    ADD_FAILURE() << "cannot open " << path;
    return {};
  }
  return {std::istreambuf_iterator<char>(file), {}};
}

std::set<std::string> list(const std::string& directory) {
  std::set<std::string> names;
  for (const auto& row : std::filesystem::directory_iterator(directory)) names.insert(row.path().filename());
  return names;
}

bool exists(const std::string& path) {
  struct stat st {};
  return lstat(path.c_str(), &st) == 0;
}

std::size_t mounts_at(const std::string& path) {
  std::size_t count = 0;
  const std::vector<MountEntry> table = read_mount_table().value_or(std::vector<MountEntry>{});
  for (const MountEntry& entry : table) count += entry.path == path ? 1 : 0;
  return count;
}

Xattr get_xattr(const std::string& path, const std::string& name) {
  std::array<char, 4096> buffer{};
  const ssize_t n = getxattr(path.c_str(), name.c_str(), buffer.data(), buffer.size());
  if (n < 0) return {{}, errno};
  return {std::string(buffer.data(), static_cast<std::size_t>(n)), 0};
}

}  // namespace wcache::test

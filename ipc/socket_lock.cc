#include "ipc/socket_lock.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <thread>

namespace wcache {
namespace {

/// Who sweeps holds a lock for microseconds and writes no pid; nor has a holder that just began.
constexpr int kAttempts = 20;
constexpr std::chrono::milliseconds kBetweenAttempts{5};

std::string lock_path_of(const std::string& socket_path) {
  return socket_path + ".lock";
}

bool is_still_at(int fd, const std::string& path) {
  struct stat opened {};
  struct stat named {};
  return fstat(fd, &opened) == 0 && lstat(path.c_str(), &named) == 0 && opened.st_dev == named.st_dev &&
         opened.st_ino == named.st_ino;
}

/// Who holds the lock, if that is a process that serves.
std::string holder_in(int fd) {
  std::array<char, 16> text{};
  const ssize_t n = pread(fd, text.data(), text.size(), 0);
  int pid = 0;
  if (n <= 0 || std::from_chars(text.data(), text.data() + n, pid).ec != std::errc{} || pid <= 0) return {};
  if (kill(pid, 0) != 0 && errno == ESRCH) return {};
  return std::to_string(pid);
}

}  // namespace

Result<SocketLock> SocketLock::take(const std::string& socket_path, Use use) {
  const std::string path = lock_path_of(socket_path);
  std::string holder;
  for (int attempt = 0; attempt < (use == Use::serve ? kAttempts : 1); ++attempt) {
    if (attempt > 0) std::this_thread::sleep_for(kBetweenAttempts);
    Result<Fd> file = open_file(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW, 0600);
    if (!file) return fail(file.error());
    if (flock(file->get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK) return fail_errno("locking " + path, errno);
      holder = holder_in(file->get());
      if (!holder.empty()) break;
      continue;
    }
    if (!is_still_at(file->get(), path)) continue;
    const std::string pid = use == Use::serve ? std::to_string(getpid()) + "\n" : std::string();
    if (ftruncate(file->get(), 0) != 0 || pwrite(file->get(), pid.data(), pid.size(), 0) < 0)
      return fail_errno("writing " + path, errno);
    return SocketLock(socket_path, std::move(*file));
  }
  return fail(Reason::busy, "already served by " + (holder.empty() ? "another process" : "pid " + holder));
}

SocketLock& SocketLock::operator=(SocketLock&& other) noexcept {
  if (this != &other) {
    let_go();
    socket_path_ = std::move(other.socket_path_);
    file_ = std::move(other.file_);
  }
  return *this;
}

SocketLock::~SocketLock() {
  let_go();
}

void SocketLock::let_go() {
  if (!file_) return;
  unlink(lock_path_of(socket_path_).c_str());
  file_.reset();
}

}  // namespace wcache

#include "daemon/supervisor/launchers_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <thread>

namespace wcache {
namespace {

constexpr std::chrono::milliseconds kRetry{20};

bool names_this_file(const std::string& path, int fd) {
  struct stat there {
  }, here{};
  return stat(path.c_str(), &there) == 0 && fstat(fd, &here) == 0 && there.st_dev == here.st_dev &&
         there.st_ino == here.st_ino;
}

/// The locked file; nullopt when somebody holds it exclusively or has just removed it.
Result<std::optional<Fd>> try_share(const std::string& path) {
  Result<Fd> file = open_file(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW, 0600);
  if (!file) return fail(file.error());
  if (flock(file->get(), LOCK_SH | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK || errno == EINTR) return std::nullopt;
    return fail_errno("locking " + path, errno);
  }
  if (!names_this_file(path, file->get())) return std::nullopt;
  return std::move(*file);
}

}  // namespace

Result<LaunchersLock> LaunchersLock::share(std::string path, Deadline deadline,
                                           const std::function<bool()>& interrupted) {
  for (;;) {
    Result<std::optional<Fd>> file = try_share(path);
    if (!file) return fail(file.error());
    if (*file) return LaunchersLock(std::move(path), std::move(**file));
    if (remaining_ms(deadline) == 0 || interrupted())
      return fail(Reason::timeout, "another launcher that ends holds " + path);
    std::this_thread::sleep_for(kRetry);
  }
}

bool LaunchersLock::become_last() {
  if (!last_ && file_) last_ = flock(file_.get(), LOCK_EX | LOCK_NB) == 0;
  return last_;
}

LaunchersLock::~LaunchersLock() {
  if (last_ && file_) unlink(path_.c_str());
}

}  // namespace wcache

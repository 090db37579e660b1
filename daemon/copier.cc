#include "daemon/copier.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <span>
#include <string>
#include <system_error>
#include <utility>

namespace wcache {
namespace {

/// What one copy from the device moves at most: the size of each thread's buffer.
constexpr std::size_t kBufferNbytes = std::size_t{1} << 20;

Status write_exact(int fd, std::span<const std::byte> bytes, std::uint64_t offset) {
  while (!bytes.empty()) {
    const ssize_t n = pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return fail_errno("writing to the asker's descriptor", n == 0 ? EIO : errno);
    bytes = bytes.subspan(static_cast<std::size_t>(n));
    offset += static_cast<std::uint64_t>(n);
  }
  return {};
}

}  // namespace

Status check_copy_target(int fd) {
  struct stat st {};
  struct statfs fs {};
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fstat(fd, &st) != 0 || fstatfs(fd, &fs) != 0)
    return fail(Reason::invalid, "the descriptor to copy to cannot be looked at");
  if (!S_ISREG(st.st_mode) || fs.f_type != TMPFS_MAGIC || (flags & O_ACCMODE) == O_RDONLY ||
      (flags & O_APPEND) != 0)
    return fail(Reason::invalid, "the descriptor to copy to is no memory that can be written");
  return {};
}

Copier::~Copier() {
  std::vector<std::jthread> threads;
  std::deque<Job> dropped;
  {
    const std::lock_guard lock(mutex_);
    dropped.swap(jobs_);
    threads.swap(threads_);
  }
  for (std::jthread& thread : threads) thread.request_stop();
}

Status Copier::run(Job job) {
  const std::lock_guard lock(mutex_);
  if (jobs_.size() >= idle_ && threads_.size() < most_) try {
      threads_.emplace_back([this](const std::stop_token& stop) { work(stop); });
    } catch (const std::system_error& e) {
      if (threads_.empty())
        return fail(Reason::io, std::string("no thread to copy from the device: ") + e.what(),
                    "see how many processes and threads there may be (ulimit -u, pids.max of the cgroup)");
    }
  jobs_.push_back(std::move(job));
  more_.notify_one();
  return {};
}

void Copier::drop(std::uint64_t session) {
  const std::lock_guard lock(mutex_);
  std::erase_if(jobs_, [session](const Job& job) { return job.session == session; });
}

void Copier::work(const std::stop_token& stop) {
  std::vector<std::byte> buffer;
  std::unique_lock lock(mutex_);
  for (;;) {
    ++idle_;
    const bool any = more_.wait(lock, stop, [this] { return !jobs_.empty(); });
    --idle_;
    if (!any || stop.stop_requested()) return;
    const Job job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    job.done(copy(job, buffer));
    lock.lock();
  }
}

Status Copier::copy(const Job& job, std::vector<std::byte>& buffer) try {
  buffer.resize(kBufferNbytes);
  for (std::uint32_t done = 0; done < job.nbytes;) {
    const std::span<std::byte> piece(buffer.data(), std::min<std::size_t>(kBufferNbytes, job.nbytes - done));
    if (Status read = entry_.read(job.image, job.offset + done, piece); !read) return read;
    if (Status written = write_exact(job.into.get(), piece, done); !written) return written;
    done += static_cast<std::uint32_t>(piece.size());
  }
  return {};
} catch (const std::exception& e) {
  return fail(Reason::internal, e.what());
}

}  // namespace wcache

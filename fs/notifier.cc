#include "fs/notifier.h"

#include <algorithm>
#include <cerrno>
#include <utility>

namespace wcache {
namespace {

/// The kernel had nothing to forget, or still has files of it open: both are fine.
bool is_harmless(int result) {
  return result == 0 || result == -ENOENT || result == -ENOTEMPTY;
}

}  // namespace

int SessionKernelCache::drop_name(std::uint64_t directory, const std::string& name) {
  return fuse_lowlevel_notify_inval_entry(session_, directory, name.c_str(), name.size());
}

int SessionKernelCache::delete_name(std::uint64_t directory, std::uint64_t child, const std::string& name) {
  return fuse_lowlevel_notify_delete(session_, directory, child, name.c_str(), name.size());
}

int SessionKernelCache::drop_attributes(std::uint64_t inode) {
  // A negative offset: attributes only. With a range it would wait for reads in flight.
  return fuse_lowlevel_notify_inval_inode(session_, inode, -1, 0);
}

Notifier::Notifier(KernelCache& cache, spdlog::logger& log)
    : cache_(cache), log_(log), thread_([this] { run(); }) {}

void Notifier::notify(const std::vector<TreeChange>& changes) {
  const std::lock_guard lock(mutex_);
  if (disarmed_) return;
  for (const TreeChange& change : changes) {
    const auto same = std::find_if(queue_.begin(), queue_.end(), [&](const TreeChange& queued) {
      return queued.directory == change.directory && queued.name == change.name;
    });
    if (same == queue_.end())
      queue_.push_back(change);
    else if (change.removed != 0)
      *same = change;
  }
  changed_.notify_all();
}

void Notifier::disarm() {
  {
    const std::lock_guard lock(mutex_);
    disarmed_ = true;
    queue_.clear();
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

bool Notifier::wait_sent(std::chrono::milliseconds wait) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, wait, [this] { return queue_.empty() && !sending_; });
}

void Notifier::run() {
  for (;;) {
    TreeChange change;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return disarmed_ || !queue_.empty(); });
      if (disarmed_) return;
      change = std::move(queue_.front());
      queue_.pop_front();
      sending_ = true;
    }
    send(change);
    const std::lock_guard lock(mutex_);
    sending_ = false;
    changed_.notify_all();
  }
}

void Notifier::send(const TreeChange& change) {
  // A new name needs nothing: that it was absent is not cached. Deleting also wakes who watches the
  // directory; the kernel refuses it while something below is open, and only forgets the name then.
  int result = 0;
  if (change.removed != 0)
    result = change.in_use ? cache_.drop_name(change.directory, change.name)
                           : cache_.delete_name(change.directory, change.removed, change.name);
  const int attributes = cache_.drop_attributes(change.directory);
  for (const int failure : {result, attributes})
    if (!is_harmless(failure))
      log_.warn("telling the kernel that {} changed: errno {}", change.name, -failure);
}

}  // namespace wcache

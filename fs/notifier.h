#pragma once

#include <fuse_lowlevel.h>
#include <spdlog/logger.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "fs/tree.h"

namespace wcache {

/// What the kernel can be told to forget; replaced in tests. Each gives 0 or a negative errno, as libfuse
/// does, and may block until requests in flight below the same directory are answered.
class KernelCache {
 public:
  virtual ~KernelCache() = default;
  virtual int drop_name(std::uint64_t directory, const std::string& name) = 0;
  virtual int delete_name(std::uint64_t directory, std::uint64_t child, const std::string& name) = 0;
  virtual int drop_attributes(std::uint64_t inode) = 0;
};

class SessionKernelCache : public KernelCache {
 public:
  explicit SessionKernelCache(fuse_session* session) : session_(session) {}
  int drop_name(std::uint64_t directory, const std::string& name) override;
  int delete_name(std::uint64_t directory, std::uint64_t child, const std::string& name) override;
  int drop_attributes(std::uint64_t inode) override;

 private:
  fuse_session* session_;
};

/// Tells the kernel what changed, on the only thread that does. Nothing depends on it: the tree is published
/// already, and the kernel's own timeouts end what a lost notification leaves. Safe for concurrent use.
class Notifier {
 public:
  Notifier(KernelCache& cache, spdlog::logger& log);
  ~Notifier() { disarm(); }

  /// A name that is queued already is sent once.
  void notify(const std::vector<TreeChange>& changes);

  /// Until everything is sent; false when that took longer. Not for who answers the kernel's requests.
  bool wait_sent(std::chrono::milliseconds wait);

  /// Drops what is queued and sends nothing any more; before the mount is taken down. Waits for one
  /// notification that is under way, so the loop must still be running.
  void disarm();

 private:
  void run();
  void send(const TreeChange& change);

  KernelCache& cache_;
  spdlog::logger& log_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::deque<TreeChange> queue_;
  bool sending_ = false;
  bool disarmed_ = false;
  std::thread thread_;
};

}  // namespace wcache

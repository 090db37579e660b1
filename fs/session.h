#pragma once

#include <fuse_lowlevel.h>
#include <spdlog/logger.h>

#include <memory>
#include <thread>

#include "core/fd.h"
#include "core/result.h"
#include "fs/file_system.h"
#include "ipc/deadline.h"

namespace wcache {

/// How a session's loop ended.
struct SessionEnd {
  enum class Why {
    unmounted,  ///< somebody took the mount away, or the connection was aborted
    stopped,    ///< stop() was called
    failed,     ///< the library gave up; see errnum
  };
  Why why = Why::stopped;
  int errnum = 0;
};

/// The library's session over a mounted /dev/fuse descriptor, with a loop of several worker threads behind a
/// thread of its own. The file system is borrowed.
class Session {
 public:
  static Result<std::unique_ptr<Session>> start(FileSystem& file_system, Fd device, spdlog::logger& log);
  ~Session();  ///< stops

  /// Until the kernel's first request has been answered. timeout; internal when the loop ended instead.
  Status wait_initialised(Deadline deadline);

  /// Becomes readable when the loop has ended, for poll(2).
  int ended_fd() const { return ended_.get(); }

  /// Ends the loop, whether the mount is gone or not, and joins its threads. The first call's answer is kept.
  SessionEnd stop();

  int device_fd() const { return fuse_session_fd(session_.get()); }
  fuse_session* raw() { return session_.get(); }

 private:
  struct Destroy {
    void operator()(fuse_session* session) const { fuse_session_destroy(session); }
  };
  using Handle = std::unique_ptr<fuse_session, Destroy>;
  Session(FileSystem& file_system, Handle session, Fd ended, spdlog::logger& log)
      : file_system_(file_system), session_(std::move(session)), ended_(std::move(ended)), log_(log) {}
  void run();

  FileSystem& file_system_;
  Handle session_;
  Fd ended_;  // eventfd
  spdlog::logger& log_;
  std::atomic<bool> stopping_ = false;
  std::atomic<bool> done_ = false;
  SessionEnd end_;  // written by the loop's thread, read after joining it
  std::thread thread_;
};

}  // namespace wcache

#include "fs/session.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <string>
#include <utility>

namespace wcache {
namespace {

// Wakes the loop's thread out of its semaphore: fuse_session_exit only sets a flag up to 3.17.1. Not one of
// those that the library blocks.
constexpr int kWakeSignal = SIGUSR1;
constexpr std::chrono::milliseconds kPollStep{1};
constexpr std::chrono::milliseconds kWakeStep{20};
constexpr unsigned kMaxThreads = 10;

struct LoopConfigDestroy {
  void operator()(fuse_loop_config* config) const { fuse_loop_cfg_destroy(config); }
};

void ignore_signal(int) {}

void unblock_wake_signal() {
  struct sigaction action {};
  action.sa_handler = ignore_signal;  // without SA_RESTART: the wait has to end
  sigaction(kWakeSignal, &action, nullptr);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, kWakeSignal);
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

}  // namespace

Result<std::unique_ptr<Session>> Session::start(FileSystem& file_system, Fd device, spdlog::logger& log) {
  Fd ended = Fd::adopt(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!ended) return fail_errno("eventfd", errno);
  const fuse_lowlevel_ops operations = FileSystem::operations();
  char program[] = "wcachefs";
  std::array<char*, 2> arguments{program, nullptr};
  fuse_args args = FUSE_ARGS_INIT(1, arguments.data());
  Handle raw(fuse_session_new(&args, &operations, sizeof operations, &file_system));
  fuse_opt_free_args(&args);
  if (!raw) return fail(Reason::internal, "libfuse refused to make a session");
  // The library takes the descriptor over from here.
  const std::string path = "/dev/fd/" + std::to_string(device.get());
  if (fuse_session_mount(raw.get(), path.c_str()) != 0)
    return fail(Reason::internal, "libfuse refused the mount's descriptor");
  device.release();
  std::unique_ptr<Session> session(new Session(file_system, std::move(raw), std::move(ended), log));
  session->thread_ = std::thread([self = session.get()] { self->run(); });
  return session;
}

Session::~Session() {
  stop();
}

void Session::run() {
  unblock_wake_signal();
  std::unique_ptr<fuse_loop_config, LoopConfigDestroy> config(fuse_loop_cfg_create());
  // No idle limit, the default: one makes threads come and go under load. 3.14 warns when told so.
  fuse_loop_cfg_set_max_threads(config.get(), kMaxThreads);
  const int result = fuse_session_loop_mt(session_.get(), config.get());
  if (stopping_)
    end_ = {SessionEnd::Why::stopped, 0};
  else if (result == 0)
    end_ = {SessionEnd::Why::unmounted, 0};
  else
    end_ = {SessionEnd::Why::failed, result < 0 ? -result : result};
  done_ = true;
  const std::uint64_t one = 1;
  if (write(ended_.get(), &one, sizeof one) != sizeof one) log_.error("eventfd: {}", errno);
}

Status Session::wait_initialised(Deadline deadline) {
  while (!file_system_.initialised()) {
    if (done_)
      return fail(Reason::internal, "the FUSE session ended before the kernel's first request was answered");
    if (std::chrono::steady_clock::now() >= deadline)
      return fail(Reason::timeout, "the kernel did not begin the FUSE session in time");
    std::this_thread::sleep_for(kPollStep);
  }
  return {};
}

SessionEnd Session::stop() {
  stopping_ = stopping_ || !done_;
  fuse_session_exit(session_.get());
  while (thread_.joinable() && !done_) {  // again and again: the first signal may come before the wait begins
    pthread_kill(thread_.native_handle(), kWakeSignal);
    pollfd ended{ended_.get(), POLLIN, 0};
    poll(&ended, 1, static_cast<int>(kWakeStep.count()));
  }
  if (thread_.joinable()) thread_.join();
  return end_;
}

}  // namespace wcache

#include "daemon/supervisor/stop_signals.h"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>

namespace wcache {
namespace {

constexpr std::array kStopSignals = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};

sigset_t stop_set() {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : kStopSignals) sigaddset(&set, number);
  return set;
}

}  // namespace

void StopSignals::block() {
  const sigset_t set = stop_set();
  sigprocmask(SIG_BLOCK, &set, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
}

void StopSignals::unblock() {
  const sigset_t set = stop_set();
  sigprocmask(SIG_UNBLOCK, &set, nullptr);
  std::signal(SIGPIPE, SIG_DFL);
}

Result<StopSignals> StopSignals::open() {
  const sigset_t set = stop_set();
  Fd fd = Fd::adopt(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd) return fail_errno("signalfd", errno);
  return StopSignals(std::move(fd));
}

int StopSignals::take() const {
  signalfd_siginfo info{};
  return read(fd_.get(), &info, sizeof info) == sizeof info ? static_cast<int>(info.ssi_signo) : 0;
}

bool StopSignals::pending() const {
  pollfd item{fd_.get(), POLLIN, 0};
  return poll(&item, 1, 0) > 0;
}

}  // namespace wcache

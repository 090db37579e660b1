#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>

#include "daemon/fill/disk.h"

namespace wcache {
namespace {

/// Makes `call` fail with `errnum` in this process from now on, as the seccomp profile of a container does.
bool deny(long call, int errnum) {
  std::array<sock_filter, 4> program{{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(call), 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<std::uint32_t>(errnum)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  }};
  const sock_fprog filter{program.size(), program.data()};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

/// Exit status of a child in which `call` is denied: 0 when the disk reads with threads and says why.
int threads_when_denied(long call, int errnum) {
  const pid_t child = fork();
  if (child == 0) {
    if (!deny(call, errnum)) _exit(77);
    const MachineDisk machine = open_machine_disk();
    const bool good = machine.disk->blocking() && machine.note.find("io_uring") != std::string::npos;
    if (!good) std::fprintf(stderr, "note: '%s'\n", machine.note.c_str());
    _exit(good ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(DeniedIoUring, ThreadsReadInstead) {
  for (const int errnum : {EPERM, ENOSYS, ENOMEM}) {
    const int status = threads_when_denied(SYS_io_uring_setup, errnum);
    if (status == 77) GTEST_SKIP() << "no seccomp filter can be set here";
    EXPECT_EQ(status, 0) << errnum;
  }
}

TEST(DeniedIoUring, ARingThatCannotBeUsedIsNoticed) {
  const int status = threads_when_denied(SYS_io_uring_enter, EPERM);
  if (status == 77) GTEST_SKIP() << "no seccomp filter can be set here";
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace wcache

#include "fs/fusermount.h"

#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "core/fd.h"
#include "ipc/deadline.h"

extern char** environ;  // NOLINT: POSIX's own name

namespace wcache {
namespace {

// The library would call the fusermount3 of its own prefix, which is not setuid.
constexpr std::array kPrograms{"/usr/bin/fusermount3", "/bin/fusermount3", "/usr/local/bin/fusermount3"};
constexpr std::chrono::seconds kWait{20};
constexpr std::chrono::milliseconds kStep{2};

Result<std::string> find_program() {
  for (const char* program : kPrograms)
    if (access(program, X_OK) == 0) return std::string(program);
  return fail(Reason::unsupported, "fusermount3 is not installed, and this process may not mount itself",
              "install fuse3, or run as root");
}

/// Starts `arguments` with `comm` as an inherited descriptor that _FUSE_COMMFD names, where it is not
/// negative.
Result<pid_t> spawn(std::vector<std::string> arguments, int comm) {
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  std::string comm_variable = "_FUSE_COMMFD=" + std::to_string(comm);
  std::vector<char*> env;
  for (char** variable = environ; *variable != nullptr; ++variable) env.push_back(*variable);
  if (comm >= 0) env.push_back(comm_variable.data());
  env.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  if (comm >= 0) posix_spawn_file_actions_adddup2(&actions, comm, comm);  // clears close-on-exec in the child
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  pid_t pid = -1;
  const int errnum = posix_spawn(&pid, argv[0], &actions, &attributes, argv.data(), env.data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (errnum != 0) return fail_errno("starting " + arguments.front(), errnum);
  return pid;
}

/// Its messages go to our standard error.
Status wait_for(pid_t pid, const std::string& what) {
  const Deadline deadline = deadline_in(kWait);
  for (int status = 0;;) {
    const pid_t done = waitpid(pid, &status, WNOHANG);
    if (done == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0) return {};
    if (done == pid) return fail(Reason::denied, what + " failed", "its own message is on standard error");
    if (done < 0 && errno != EINTR) return fail_errno("waiting for fusermount3", errno);
    if (std::chrono::steady_clock::now() > deadline) return fail(Reason::timeout, what + " does not end");
    std::this_thread::sleep_for(kStep);
  }
}

Result<Fd> receive_descriptor(int socket) {
  char byte = 0;
  iovec iov{&byte, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &iov;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ssize_t n = 0;
  do n = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  while (n < 0 && errno == EINTR);
  const cmsghdr* header = n > 0 ? CMSG_FIRSTHDR(&message) : nullptr;
  if (header == nullptr || header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS ||
      header->cmsg_len != CMSG_LEN(sizeof(int)))
    return fail(Reason::denied, "fusermount3 gave no descriptor", "its own message is on standard error");
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
  return Fd::adopt(fd);
}

}  // namespace

Result<Fd> fusermount_mount(const std::string& path, const std::string& options) {
  Result<std::string> program = find_program();
  if (!program) return fail(std::move(program.error()));
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0)
    return fail_errno("socketpair", errno);
  const Fd ours = Fd::adopt(ends[0]);
  Fd theirs = Fd::adopt(ends[1]);
  const timeval wait{static_cast<time_t>(kWait.count()), 0};
  setsockopt(ours.get(), SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
  Result<pid_t> pid = spawn({*program, "-o", options, "--", path}, theirs.get());
  if (!pid) return fail(std::move(pid.error()));
  theirs.reset();
  Result<Fd> device = receive_descriptor(ours.get());
  if (Status done = wait_for(*pid, "mounting with fusermount3"); !done) return fail(std::move(done.error()));
  return device;
}

Status fusermount_unmount(const std::string& path, bool lazily) {
  Result<std::string> program = find_program();
  if (!program) return fail(std::move(program.error()));
  std::vector<std::string> arguments{*program, "-u", "-q"};
  if (lazily) arguments.emplace_back("-z");
  arguments.insert(arguments.end(), {"--", path});
  Result<pid_t> pid = spawn(std::move(arguments), -1);
  if (!pid) return fail(std::move(pid.error()));
  return wait_for(*pid, "unmounting with fusermount3");
}

}  // namespace wcache

#pragma once

#include <cuda.h>
#include <sys/socket.h>

#include <cstddef>
#include <cstring>
#include <vector>

namespace wcache::testing {

/// What the child process tells first (fake_cuda_child.cc).
struct Report {
  CUresult result;
  CUipcMemHandle handle;
};

/// Bytes in which no two places near one another are alike.
inline std::vector<unsigned char> pattern(std::size_t size, unsigned seed = 1) {
  std::vector<unsigned char> bytes(size);
  unsigned state = seed * 2654435761u + 1;
  for (unsigned char& byte : bytes) {
    state = state * 1664525u + 1013904223u;
    byte = static_cast<unsigned char>(state >> 24);
  }
  return bytes;
}

/// Sends the report, and `fd` with it when it is one.
inline bool send_report(int socket, Report report, int fd) {
  iovec part = {&report, sizeof report};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  }
  return sendmsg(socket, &message, 0) == static_cast<ssize_t>(sizeof report);
}

/// -1 in `fd` when none came.
inline bool receive_report(int socket, Report& report, int& fd) {
  iovec part = {&report, sizeof report};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  fd = -1;
  if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != static_cast<ssize_t>(sizeof report)) return false;
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header && header->cmsg_type == SCM_RIGHTS) std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
  return true;
}

}  // namespace wcache::testing

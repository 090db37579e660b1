#include "tests/unit/fs/fake_kernel.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cstddef>

namespace wcache::test {
namespace {

constexpr int kWaitMs = 5000;
constexpr std::size_t kMaxReply = std::size_t{1} << 20;

ssize_t io_write(int fd, iovec* iov, int count, void*) {
  return writev(fd, iov, count);
}
ssize_t io_read(int fd, void* buffer, std::size_t size, void*) {
  return read(fd, buffer, size);
}

int give_io(fuse_session* session, const fuse_custom_io& io, int fd) {
#if FUSE_USE_VERSION >= FUSE_MAKE_VERSION(3, 17)
  return fuse_session_custom_io(session, &io, sizeof io, fd);
#else
  return fuse_session_custom_io(session, &io, fd);
#endif
}

}  // namespace

FakeKernel::FakeKernel(FileSystem& fs, std::uint32_t flags2) {
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) std::abort();
  kernel_ = Fd::adopt(ends[0]);
  const int buffer = static_cast<int>(kMaxReply);
  setsockopt(ends[1], SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer);

  char program[] = "fake";
  std::array<char*, 2> arguments{program, nullptr};
  fuse_args args = FUSE_ARGS_INIT(1, arguments.data());
  const fuse_lowlevel_ops operations = FileSystem::operations();
  session_ = fuse_session_new(&args, &operations, sizeof operations, &fs);
  fuse_opt_free_args(&args);
  fuse_custom_io io{};
  io.writev = io_write;
  io.read = io_read;
  if (session_ == nullptr || give_io(session_, io, ends[1]) != 0) std::abort();
  thread_ = std::thread([this] { fuse_session_loop(session_); });

  fuse_init_in init{};
  init.major = FUSE_KERNEL_VERSION;
  init.minor = 40;
  init.max_readahead = 128 << 10;
  init.flags = FUSE_ASYNC_READ | FUSE_BIG_WRITES | FUSE_AUTO_INVAL_DATA | FUSE_DO_READDIRPLUS |
               FUSE_READDIRPLUS_AUTO | FUSE_ASYNC_DIO | FUSE_PARALLEL_DIROPS | FUSE_MAX_PAGES |
               FUSE_CACHE_SYMLINKS | FUSE_EXPLICIT_INVAL_DATA | FUSE_SPLICE_READ | FUSE_SPLICE_WRITE |
               FUSE_INIT_EXT;
  init.flags2 = flags2;
  init_ = ask(FUSE_INIT, 0, bytes_of(init)).as<fuse_init_out>();
}

FakeKernel::~FakeKernel() {
  fuse_session_exit(session_);
  kernel_.reset();
  thread_.join();
  fuse_session_destroy(session_);
}

std::uint64_t FakeKernel::send(std::uint32_t opcode, std::uint64_t inode, std::string_view body) {
  fuse_in_header header{};
  header.len = static_cast<std::uint32_t>(sizeof header + body.size());
  header.opcode = opcode;
  header.unique = unique_ += 2;
  header.nodeid = inode;
  header.uid = uid_;
  header.gid = getgid();
  header.pid = static_cast<std::uint32_t>(getpid());
  std::string message(bytes_of(header));
  message.append(body);
  if (::send(kernel_.get(), message.data(), message.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(message.size()))
    ADD_FAILURE() << "the session is gone";
  return header.unique;
}

std::optional<FakeKernel::Late> FakeKernel::receive(int wait_ms) {
  pollfd fd{kernel_.get(), POLLIN, 0};
  if (poll(&fd, 1, wait_ms) != 1) return std::nullopt;
  std::string buffer(kMaxReply, '\0');
  const ssize_t n = recv(kernel_.get(), buffer.data(), buffer.size(), 0);
  fuse_out_header header{};
  if (n < static_cast<ssize_t>(sizeof header)) return std::nullopt;
  std::memcpy(&header, buffer.data(), sizeof header);
  EXPECT_EQ(header.len, static_cast<std::uint32_t>(n));
  return Late{header.unique,
              {-header.error, buffer.substr(sizeof header, static_cast<std::size_t>(n) - sizeof header)}};
}

FakeKernel::Reply FakeKernel::ask(std::uint32_t opcode, std::uint64_t inode, std::string_view body) {
  const std::uint64_t unique = send(opcode, inode, body);
  const std::optional<Late> late = receive(kWaitMs);
  if (!late) {
    ADD_FAILURE() << "no reply to opcode " << opcode;
    return {ETIMEDOUT, {}};
  }
  EXPECT_EQ(late->unique, unique);
  return late->reply;
}

FakeKernel::Reply FakeKernel::lookup(std::uint64_t parent, const std::string& name) {
  return ask(FUSE_LOOKUP, parent, std::string_view(name.c_str(), name.size() + 1));
}

std::uint64_t FakeKernel::walk(const std::string& path) {
  std::uint64_t inode = FUSE_ROOT_ID;
  for (std::size_t begin = 0; begin < path.size() && inode != 0;) {
    const std::size_t end = std::min(path.find('/', begin), path.size());
    inode = lookup(inode, path.substr(begin, end - begin)).as<fuse_entry_out>().nodeid;
    begin = end + 1;
  }
  return inode;
}

FakeKernel::Reply FakeKernel::getattr(std::uint64_t inode, std::optional<std::uint64_t> handle) {
  fuse_getattr_in in{};
  in.getattr_flags = handle ? FUSE_GETATTR_FH : 0;
  in.fh = handle.value_or(0);
  return ask(FUSE_GETATTR, inode, bytes_of(in));
}

FakeKernel::Reply FakeKernel::open(std::uint64_t inode, std::uint32_t flags, bool directory) {
  fuse_open_in in{};
  in.flags = flags;
  return ask(directory ? FUSE_OPENDIR : FUSE_OPEN, inode, bytes_of(in));
}

FakeKernel::Reply FakeKernel::read(std::uint64_t inode, std::uint64_t handle, std::uint64_t offset,
                                   std::uint32_t size, std::uint32_t opcode) {
  fuse_read_in in{};
  in.fh = handle;
  in.offset = offset;
  in.size = size;
  return ask(opcode, inode, bytes_of(in));
}

FakeKernel::Reply FakeKernel::release(std::uint64_t inode, std::uint64_t handle, bool directory) {
  fuse_release_in in{};
  in.fh = handle;
  return ask(directory ? FUSE_RELEASEDIR : FUSE_RELEASE, inode, bytes_of(in));
}

FakeKernel::Reply FakeKernel::getxattr(std::uint64_t inode, const std::string& name, std::uint32_t size) {
  fuse_getxattr_in in{};
  in.size = size;
  return ask(FUSE_GETXATTR, inode, std::string(bytes_of(in)) + name + '\0');
}

FakeKernel::Reply FakeKernel::listxattr(std::uint64_t inode, std::uint32_t size) {
  fuse_getxattr_in in{};
  in.size = size;
  return ask(FUSE_LISTXATTR, inode, bytes_of(in));
}

std::vector<std::string> FakeKernel::list(std::uint64_t inode, std::uint32_t size, bool plus) {
  const std::uint64_t handle = open(inode, 0, true).as<fuse_open_out>().fh;
  std::vector<std::string> names;
  for (std::uint64_t cookie = 0;;) {
    const Reply reply = read(inode, handle, cookie, size, plus ? FUSE_READDIRPLUS : FUSE_READDIR);
    EXPECT_EQ(reply.errnum, 0);
    if (reply.errnum != 0 || reply.bytes.empty()) break;
    for (std::size_t at = 0; at < reply.bytes.size();) {
      const std::size_t head = plus ? sizeof(fuse_entry_out) : 0;
      fuse_dirent row{};
      std::memcpy(&row, reply.bytes.data() + at + head, offsetof(fuse_dirent, name));
      names.push_back(reply.bytes.substr(at + head + offsetof(fuse_dirent, name), row.namelen));
      cookie = row.off;
      at += FUSE_DIRENT_ALIGN(head + offsetof(fuse_dirent, name) + row.namelen);
    }
  }
  EXPECT_EQ(release(inode, handle, true).errnum, 0);
  return names;
}

}  // namespace wcache::test

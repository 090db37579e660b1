#include "ipc/connection.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <string_view>
#include <thread>
#include <vector>

#include "ipc/listener.h"
#include "temporary_directory.h"
#include "tests/support/descriptors.h"

namespace wcache {
namespace {

using namespace std::chrono_literals;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

std::string text_of(const Message& message) {
  return {reinterpret_cast<const char*>(message.bytes.data()), message.bytes.size()};
}

std::vector<Fd> some_files(std::size_t count) {
  std::vector<Fd> files;
  for (std::size_t i = 0; i < count; ++i) {
    files.push_back(Fd::adopt(memfd_create("test", MFD_CLOEXEC)));
    EXPECT_EQ(ftruncate(files.back().get(), static_cast<off_t>(i)), 0);
  }
  return files;
}

std::vector<int> numbers_of(const std::vector<Fd>& files) {
  std::vector<int> out;
  for (const Fd& file : files) out.push_back(file.get());
  return out;
}

class ConnectionTest : public testing::Test {
 protected:
  ConnectionTest() {
    auto ends = Connection::pair();
    EXPECT_TRUE(ends);
    std::tie(a_, b_) = std::tuple(std::move(ends->first), std::move(ends->second));
  }
  Connection a_ = std::move(Connection::pair()->first);
  Connection b_ = std::move(Connection::pair()->first);
};

TEST_F(ConnectionTest, CarriesBytesAndDescriptorsInOrder) {
  const std::vector<Fd> files = some_files(kMaxMessageFds);
  ASSERT_TRUE(a_.send(bytes_of("hello"), numbers_of(files), deadline_in(1s)));
  const auto message = b_.receive({64, kMaxMessageFds}, deadline_in(1s));
  ASSERT_TRUE(message && *message);
  EXPECT_EQ(text_of(**message), "hello");
  ASSERT_EQ((*message)->fds.size(), kMaxMessageFds);
  for (std::size_t i = 0; i < kMaxMessageFds; ++i) {
    struct stat st {};
    ASSERT_EQ(fstat((*message)->fds[i].get(), &st), 0);
    EXPECT_EQ(st.st_size, static_cast<off_t>(i));
    EXPECT_NE(fcntl((*message)->fds[i].get(), F_GETFD) & FD_CLOEXEC, 0);
  }
}

TEST_F(ConnectionTest, KeepsMessagesApart) {
  ASSERT_TRUE(a_.send(bytes_of("one"), {}, deadline_in(1s)));
  ASSERT_TRUE(a_.send(bytes_of("two"), {}, deadline_in(1s)));
  EXPECT_EQ(text_of(**b_.receive({}, deadline_in(1s))), "one");
  EXPECT_EQ(text_of(**b_.receive({}, deadline_in(1s))), "two");
}

TEST_F(ConnectionTest, TooLongAMessageIsCorrupt) {
  ASSERT_TRUE(a_.send(bytes_of("12345"), {}, deadline_in(1s)));
  const auto message = b_.receive({4, 0}, deadline_in(1s));
  ASSERT_FALSE(message);
  EXPECT_EQ(message.error().reason, Reason::corrupt);
}

TEST_F(ConnectionTest, SurplusDescriptorsAreCorruptAndClosed) {
  const std::size_t before = test::open_descriptors();
  for (const std::size_t allowed : {0, 1, 2, 3}) {
    {
      const std::vector<Fd> files = some_files(allowed + 1);
      ASSERT_TRUE(a_.send(bytes_of("x"), numbers_of(files), deadline_in(1s)));
    }
    const auto message = b_.receive({64, allowed}, deadline_in(1s));
    ASSERT_FALSE(message) << allowed;
    EXPECT_EQ(message.error().reason, Reason::corrupt);
    EXPECT_EQ(test::open_descriptors(), before) << allowed;
  }
}

TEST_F(ConnectionTest, DescriptorsLostToAFullTableAreCorrupt) {
  const std::vector<Fd> files = some_files(8);
  ASSERT_TRUE(a_.send(bytes_of("x"), numbers_of(files), deadline_in(1s)));
  rlimit saved{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &saved), 0);
  rlimit tight = saved;
  tight.rlim_cur = static_cast<rlim_t>(files.back().get()) + 4;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &tight), 0);
  const auto message = b_.receive({64, 8}, deadline_in(1s));
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &saved), 0);
  ASSERT_FALSE(message);
  EXPECT_EQ(message.error().reason, Reason::corrupt);
  EXPECT_NE(message.error().hint.find("open files"), std::string::npos);
}

TEST_F(ConnectionTest, TheEndIsAValue) {
  ASSERT_TRUE(a_.send(bytes_of("last"), {}, deadline_in(1s)));
  a_.close();
  EXPECT_EQ(text_of(**b_.receive({}, deadline_in(1s))), "last");
  const auto end = b_.receive({}, deadline_in(1s));
  ASSERT_TRUE(end);
  EXPECT_FALSE(*end);
}

TEST_F(ConnectionTest, APeerThatClosesWithUnreadMessagesIsAnEndToo) {
  ASSERT_TRUE(b_.send(bytes_of("never read"), {}, deadline_in(1s)));
  a_.close();
  const auto end = b_.receive({}, deadline_in(1s));
  ASSERT_TRUE(end);
  EXPECT_FALSE(*end);
}

TEST_F(ConnectionTest, AnEmptyMessageIsTheEndAndItsDescriptorsAreClosed) {
  const std::size_t before = test::open_descriptors();
  {
    const std::vector<Fd> files = some_files(1);
    char room[CMSG_SPACE(sizeof(int))] = {};
    msghdr header{};
    header.msg_control = room;
    header.msg_controllen = sizeof room;
    cmsghdr* item = CMSG_FIRSTHDR(&header);
    item->cmsg_level = SOL_SOCKET;
    item->cmsg_type = SCM_RIGHTS;
    item->cmsg_len = CMSG_LEN(sizeof(int));
    const int number = files[0].get();
    std::memcpy(CMSG_DATA(item), &number, sizeof number);
    ASSERT_EQ(sendmsg(a_.fd(), &header, 0), 0);
  }
  const auto end = b_.receive({64, 4}, deadline_in(1s));
  ASSERT_TRUE(end);
  EXPECT_FALSE(*end);
  EXPECT_EQ(test::open_descriptors(), before);
}

TEST_F(ConnectionTest, SendingToAClosedPeerIsNotRunningAndRaisesNoSignal) {
  a_.close();
  const Status sent = b_.send(bytes_of("x"), {}, deadline_in(1s));
  ASSERT_FALSE(sent);
  EXPECT_EQ(sent.error().reason, Reason::not_running);
}

TEST_F(ConnectionTest, ReceivingEndsAtTheDeadline) {
  const auto begin = std::chrono::steady_clock::now();
  const auto message = b_.receive({}, deadline_in(50ms));
  ASSERT_FALSE(message);
  EXPECT_EQ(message.error().reason, Reason::timeout);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 50ms);
}

TEST_F(ConnectionTest, SendingEndsAtTheDeadlineWhenNobodyReads) {
  const std::vector<std::byte> block(kMaxMessageBytes);
  Status sent;
  for (int i = 0; i < 1000 && sent; ++i) sent = a_.send(block, {}, deadline_in(20ms));
  ASSERT_FALSE(sent);
  EXPECT_EQ(sent.error().reason, Reason::timeout);
}

TEST_F(ConnectionTest, ADeadlineInThePastIsOneAttempt) {
  ASSERT_TRUE(a_.send(bytes_of("x"), {}, Deadline::min()));
  EXPECT_EQ(text_of(**b_.receive({}, Deadline::min())), "x");
  const auto nothing = b_.receive({}, Deadline::min());
  ASSERT_FALSE(nothing);
  EXPECT_EQ(nothing.error().reason, Reason::timeout);
}

TEST_F(ConnectionTest, RefusesToSendBeyondTheLimits) {
  const std::vector<std::byte> block(kMaxMessageBytes + 1);
  EXPECT_EQ(a_.send(block, {}, deadline_in(1s)).error().reason, Reason::internal);
  const std::vector<int> fds(kMaxMessageFds + 1, a_.fd());
  EXPECT_EQ(a_.send(bytes_of("x"), fds, deadline_in(1s)).error().reason, Reason::internal);
  EXPECT_EQ(a_.send({}, {}, deadline_in(1s)).error().reason, Reason::internal);
}

TEST(Connection, AdoptsNothingButSeqpacket) {
  int fds[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
  const Fd other(fds[1]);
  EXPECT_EQ(Connection::adopt(Fd(fds[0])).error().reason, Reason::invalid);
  EXPECT_EQ(Connection::adopt(Fd::adopt(open("/dev/null", O_RDONLY))).error().reason, Reason::invalid);
}

TEST(Connection, NobodyThereIsNotRunning) {
  const TemporaryDirectory dir;
  const auto connection = Connection::connect(dir.file("x.sock"), deadline_in(1s));
  ASSERT_FALSE(connection);
  EXPECT_EQ(connection.error().reason, Reason::not_running);
}

TEST(Connection, AFullBacklogEndsAtTheDeadline) {
  const TemporaryDirectory dir;
  const auto listener = Listener::bind(*SocketLock::take(dir.file("x.sock")));
  ASSERT_TRUE(listener);
  std::vector<Connection> waiting;
  for (int i = 0; i < 200; ++i) {
    auto connection = Connection::connect(dir.file("x.sock"), deadline_in(20ms));
    if (!connection) {
      EXPECT_EQ(connection.error().reason, Reason::timeout);
      return;
    }
    waiting.push_back(std::move(*connection));
  }
  FAIL() << "the backlog has no limit";
}

TEST(Connection, KnowsItsPeer) {
  auto ends = Connection::pair();
  ASSERT_TRUE(ends);
  const auto peer = ends->first.peer();
  ASSERT_TRUE(peer);
  EXPECT_EQ(peer->pid, getpid());
  EXPECT_EQ(peer->uid, geteuid());
  EXPECT_TRUE(ends->first.check_peer());
}

// Another user can only come this far when the run directory's mode was broken; the socket's owner still
// refuses.
TEST(Connection, AForeignUserIsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to become another user";
  const TemporaryDirectory dir;
  auto listener = Listener::bind(*SocketLock::take(dir.file("x.sock")));
  ASSERT_TRUE(listener);
  ASSERT_EQ(chmod(dir.path().c_str(), 0755), 0);
  ASSERT_EQ(chmod(dir.file("x.sock").c_str(), 0666), 0);
  const pid_t child = fork();
  if (child == 0) {
    if (setuid(65534) != 0) _exit(3);
    const auto connection = Connection::connect(dir.file("x.sock"), deadline_in(5s));
    if (!connection) _exit(4);
    auto mine = std::move(const_cast<Connection&>(*connection));
    const auto end = mine.receive({}, deadline_in(5s));
    _exit(end && !*end ? 0 : 5);
  }
  for (int i = 0; i < 500; ++i) {
    const auto accepted = listener->accept();
    ASSERT_TRUE(accepted);
    ASSERT_FALSE(*accepted) << "a foreign user was let in";
    int status = 0;
    if (waitpid(child, &status, WNOHANG) == child) {
      EXPECT_EQ(WEXITSTATUS(status), 0);
      return;
    }
    std::this_thread::sleep_for(10ms);
  }
  FAIL() << "the child did not end";
}

}  // namespace
}  // namespace wcache

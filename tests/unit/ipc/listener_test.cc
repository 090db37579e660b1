#include "ipc/listener.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "temporary_directory.h"

namespace wcache {
namespace {

using namespace std::chrono_literals;

std::vector<std::string> names_in(const std::string& path) {
  std::vector<std::string> names;
  for (const auto& item : std::filesystem::directory_iterator(path)) names.push_back(item.path().filename());
  return names;
}

Result<Listener> listen_at(const std::string& path) {
  auto lock = SocketLock::take(path);
  if (!lock) return fail(lock.error());
  return Listener::bind(std::move(*lock));
}

TEST(Listener, TakesConnectionsAndCleansUpAfterItself) {
  const TemporaryDirectory dir;
  {
    auto listener = listen_at(dir.file("wcache_x.sock"));
    ASSERT_TRUE(listener) << listener.error().message;
    struct stat st {};
    ASSERT_EQ(lstat(dir.file("wcache_x.sock").c_str(), &st), 0);
    EXPECT_EQ(st.st_mode & 0777, 0600u);
    auto client = Connection::connect(dir.file("wcache_x.sock"), deadline_in(1s));
    ASSERT_TRUE(client);
    auto accepted = listener->accept();
    ASSERT_TRUE(accepted && *accepted);
    const std::array<std::byte, 1> byte{};
    ASSERT_TRUE(client->send(byte, {}, deadline_in(1s)));
    EXPECT_TRUE((*accepted)->receive({}, deadline_in(1s)));
    const auto none = listener->accept();
    ASSERT_TRUE(none);
    EXPECT_FALSE(*none);
  }
  EXPECT_EQ(names_in(dir.path()), std::vector<std::string>{});
}

TEST(Listener, WhoeverSeesTheSocketCanConnect) {
  const TemporaryDirectory dir;
  const Fd watch = Fd::adopt(inotify_init1(IN_CLOEXEC));
  ASSERT_GE(inotify_add_watch(watch.get(), dir.path().c_str(), IN_CREATE | IN_MOVED_TO), 0);
  const auto listener = listen_at(dir.file("wcache_x.sock"));
  ASSERT_TRUE(listener);
  alignas(inotify_event) std::array<char, 4096> buffer{};
  const ssize_t n = read(watch.get(), buffer.data(), buffer.size());
  bool moved = false;
  for (ssize_t at = 0; at < n;) {
    const auto* event = reinterpret_cast<const inotify_event*>(buffer.data() + at);
    if (std::string(event->name) == "wcache_x.sock") {
      EXPECT_EQ(event->mask, static_cast<std::uint32_t>(IN_MOVED_TO));
      moved = true;
    }
    at += static_cast<ssize_t>(sizeof(inotify_event) + event->len);
  }
  EXPECT_TRUE(moved);
}

TEST(SocketLock, IsHeldByOneAndNamesTheHolder) {
  const TemporaryDirectory dir;
  {
    const auto first = SocketLock::take(dir.file("x.sock"));
    ASSERT_TRUE(first);
    const auto second = SocketLock::take(dir.file("x.sock"));
    ASSERT_FALSE(second);
    EXPECT_EQ(second.error().reason, Reason::busy);
    EXPECT_EQ(second.error().message, "already served by pid " + std::to_string(getpid()));
  }
  EXPECT_TRUE(SocketLock::take(dir.file("x.sock")));
}

TEST(SocketLock, WaitsForASweeper) {
  const TemporaryDirectory dir;
  auto sweeper = SocketLock::take(dir.file("x.sock"), SocketLock::Use::sweep);
  ASSERT_TRUE(sweeper);
  std::thread sweep([&] {
    std::this_thread::sleep_for(20ms);
    const SocketLock gone = std::move(*sweeper);
  });
  EXPECT_TRUE(SocketLock::take(dir.file("x.sock")));
  sweep.join();
}

TEST(SocketLock, DoesNotFollowALink) {
  const TemporaryDirectory dir;
  std::filesystem::create_symlink(dir.file("target"), dir.file("x.sock.lock"));
  EXPECT_FALSE(SocketLock::take(dir.file("x.sock")));
  EXPECT_FALSE(std::filesystem::exists(dir.file("target")));
}

// Taking and letting go removes the lock file each time: two holders at once would show as a lost update.
TEST(SocketLock, RemovingTheFileIsNoRace) {
  const TemporaryDirectory dir;
  std::atomic<int> holders = 0;
  std::atomic<int> taken = 0;
  std::atomic<bool> overlap = false;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) {
        const auto lock = SocketLock::take(dir.file("x.sock"), SocketLock::Use::sweep);
        if (!lock) continue;
        if (++holders != 1) overlap = true;
        ++taken;
        --holders;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(overlap);
  EXPECT_GT(taken, 0);
}

// A process that dies without a word leaves socket and lock file; the lock itself is gone with it.
TEST(Listener, ReplacesWhatACrashLeft) {
  const TemporaryDirectory dir;
  const std::string path = dir.file("wcache_x.sock");
  int ready[2];
  ASSERT_EQ(pipe2(ready, O_CLOEXEC), 0);
  const pid_t child = fork();
  if (child == 0) {
    auto listener = listen_at(path);
    if (!listener || write(ready[1], "x", 1) != 1) _exit(1);
    for (;;) pause();
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  close(ready[0]);
  close(ready[1]);
  EXPECT_EQ(listen_at(path).error().message, "already served by pid " + std::to_string(child));
  EXPECT_FALSE(remove_stale_socket(path));
  ASSERT_EQ(kill(child, SIGKILL), 0);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_EQ(names_in(dir.path()).size(), 2u);
  EXPECT_EQ(Connection::connect(path, deadline_in(1s)).error().reason, Reason::not_running);
  EXPECT_TRUE(listen_at(path));
  EXPECT_EQ(names_in(dir.path()).size(), 0u);
}

TEST(Listener, SweepsWhatACrashLeft) {
  const TemporaryDirectory dir;
  const std::string path = dir.file("launcher_1.sock");
  std::ofstream(path + ".lock") << "999999999\n";
  std::ofstream(path) << "stands for a socket";
  EXPECT_TRUE(remove_stale_socket(path));
  EXPECT_EQ(names_in(dir.path()).size(), 0u);
  EXPECT_FALSE(remove_stale_socket(path));
}

TEST(Listener, RefusesTooLongAPath) {
  const TemporaryDirectory dir;
  const auto listener = listen_at(dir.file(std::string(100, 'x')));
  ASSERT_FALSE(listener);
  EXPECT_EQ(listener.error().reason, Reason::invalid);
  EXPECT_NE(listener.error().message.find("107"), std::string::npos);
  EXPECT_EQ(names_in(dir.path()).size(), 0u);
}

}  // namespace
}  // namespace wcache

#include "daemon/event_loop.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <chrono>
#include <thread>
#include <vector>

namespace wcache {
namespace {

using namespace std::chrono_literals;

class EventLoopTest : public testing::Test {
 protected:
  std::unique_ptr<EventLoop> loop_ = std::move(*EventLoop::create());
};

TEST_F(EventLoopTest, TimersComeInOrderAndCancelledOnesDoNot) {
  std::vector<int> seen;
  loop_->at(deadline_in(20ms), [&] {
    seen.push_back(2);
    loop_->stop();
  });
  loop_->at(deadline_in(5ms), [&] { seen.push_back(1); });
  loop_->cancel(loop_->at(deadline_in(10ms), [&] { seen.push_back(9); }));
  ASSERT_TRUE(loop_->run());
  EXPECT_EQ(seen, (std::vector{1, 2}));
}

TEST_F(EventLoopTest, OtherThreadsHandTasksOverInOrder) {
  std::vector<int> seen;
  std::thread other([&] {
    for (int i = 0; i < 1000; ++i) loop_->post([&seen, i] { seen.push_back(i); });
    loop_->post([&] { loop_->stop(); });
  });
  ASSERT_TRUE(loop_->run());
  other.join();
  ASSERT_EQ(seen.size(), 1000u);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(seen[static_cast<std::size_t>(i)], i);
}

TEST_F(EventLoopTest, ACallbackMayUnwatchItselfAndOthers) {
  int fds[2];
  ASSERT_EQ(pipe2(fds, O_CLOEXEC), 0);
  const Fd in(fds[0]);
  const Fd again = *in.duplicate();
  const Fd out(fds[1]);
  int calls = 0;
  const auto both = [&](std::uint32_t) {
    ++calls;
    loop_->unwatch(in.get());
    loop_->unwatch(again.get());
    loop_->at(deadline_in(10ms), [&] { loop_->stop(); });
  };
  ASSERT_TRUE(loop_->watch(in.get(), EPOLLIN, both));
  ASSERT_TRUE(loop_->watch(again.get(), EPOLLIN, both));
  ASSERT_EQ(write(out.get(), "x", 1), 1);
  ASSERT_TRUE(loop_->run());
  EXPECT_EQ(calls, 1);
}

TEST_F(EventLoopTest, WhatIsPostedAfterTheEndNeverRuns) {
  loop_->stop();
  ASSERT_TRUE(loop_->run());
  loop_->post([] { FAIL(); });
}

}  // namespace
}  // namespace wcache

#include "fs/status_thread.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <stdexcept>

namespace wcache {
namespace {

TEST(StatusThread, WhoAsksMeanwhileSharesTheNextText) {
  std::atomic<int> made = 0;
  std::promise<void> go;
  std::shared_future<void> may_go = go.get_future().share();
  StatusThread status([&] {
    may_go.wait();
    return "text " + std::to_string(++made);
  });
  EXPECT_EQ(status.last_nbytes(), 0u);
  std::promise<std::string> first;
  std::vector<std::promise<std::string>> others(5);
  status.ask([&](auto text) { first.set_value(*text); });
  go.set_value();
  EXPECT_EQ(first.get_future().get(), "text 1");
  for (auto& other : others) status.ask([&](auto text) { other.set_value(*text); });
  for (auto& other : others) EXPECT_NE(other.get_future().get(), "text 1");
  EXPECT_LE(made, 6);
  EXPECT_EQ(status.last_nbytes(), 6u);
}

TEST(StatusThread, AFailureIsAnAnswer) {
  StatusThread status([]() -> std::string { throw std::runtime_error("no"); });
  std::promise<bool> answered;
  status.ask([&](auto text) { answered.set_value(text == nullptr); });
  EXPECT_TRUE(answered.get_future().get());
}

TEST(StatusThread, TasksRunInOrderThoughOneFails) {
  StatusThread status([] { return std::string(); });
  std::promise<std::vector<int>> done;
  std::vector<int> order;
  status.run([&] { order.push_back(1); });
  status.run([&] {
    order.push_back(2);
    throw std::runtime_error("no");
  });
  status.run([&] { done.set_value(order); });
  EXPECT_EQ(done.get_future().get(), (std::vector<int>{1, 2}));
}

TEST(StatusThread, StoppedItDropsWhoAsks) {
  StatusThread status([] { return std::string(); });
  status.stop();
  auto alive = std::make_shared<int>(0);
  status.ask([alive](auto) { FAIL(); });
  status.run([alive] { FAIL(); });
  EXPECT_EQ(alive.use_count(), 1);
}

}  // namespace
}  // namespace wcache

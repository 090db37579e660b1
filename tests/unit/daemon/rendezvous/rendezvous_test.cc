#include "daemon/rendezvous/rendezvous.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "daemon/rendezvous/address.h"
#include "daemon/rendezvous/frame.h"

namespace wcache {
namespace {

using namespace std::chrono_literals;

std::uint16_t free_port() {
  Result<Fd> fd = rendezvous::listen_at("127.0.0.1", 0);
  sockaddr_in address{};
  socklen_t nbytes = sizeof(address);
  getsockname(fd->get(), reinterpret_cast<sockaddr*>(&address), &nbytes);
  return ntohs(address.sin_port);
}

/// Collects a node's events and waits for them.
class Events {
 public:
  Rendezvous::Handler handler() {
    return [this](RendezvousEvent event) {
      const std::lock_guard lock(mutex_);
      events_.push_back(std::move(event));
      changed_.notify_all();
    };
  }
  template <class T>
  const T* wait(std::chrono::milliseconds patience = 10s) {
    std::unique_lock lock(mutex_);
    const T* found = nullptr;
    changed_.wait_for(lock, patience, [&] {
      for (const RendezvousEvent& event : events_)
        if (const T* t = std::get_if<T>(&event)) found = t;
      return found != nullptr;
    });
    return found;
  }
  std::size_t count() {
    const std::lock_guard lock(mutex_);
    return events_.size();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<RendezvousEvent> events_;
};

RendezvousOptions node(std::uint32_t rank, std::uint16_t port, std::uint32_t nnodes = 2) {
  RendezvousOptions options;
  options.nnodes = nnodes;
  options.node_rank = rank;
  options.master_addr = "127.0.0.1";
  options.port = port;
  options.token = "open sesame";
  options.label = "host-" + std::string(1, static_cast<char>('a' + rank));
  options.timeout = 10s;
  return options;
}

Key part_of(std::uint32_t rank) {
  Key key;
  key.layout = Layout::sharded;
  key.tp_size = 2;
  key.files = {
      {"config.json", 2, digest_of("{}")},
      {"model-rank-" + std::to_string(rank) + ".safetensors", 4, digest_of("w" + std::to_string(rank))}};
  return key;
}

TEST(Rendezvous, NodesAgreeOnOneKeyAndAreReadyTogether) {
  const std::uint16_t port = free_port();
  constexpr std::uint32_t kNodes = 3;
  Events events[kNodes];
  std::vector<Rendezvous> group;
  for (std::uint32_t rank : {2u, 0u, 1u}) {  // node 2 starts before there is a hub
    auto member = Rendezvous::start(node(rank, port, kNodes), events[rank].handler());
    ASSERT_TRUE(member) << member.error().message;
    member->contribute(part_of(rank));
    group.push_back(std::move(*member));
  }
  std::string key;
  for (Events& e : events) {
    const auto* agreed = e.wait<GroupAgreed>();
    ASSERT_NE(agreed, nullptr);
    EXPECT_EQ(agreed->key.files.size(), 4u);
    if (key.empty()) key = agreed->key.canonical();
    EXPECT_EQ(agreed->key.canonical(), key);
  }
  group[0].ready();
  group[1].ready();
  EXPECT_EQ(events[0].wait<GroupReady>(300ms), nullptr) << "ready before every node was";
  group[2].ready();
  for (Events& e : events) EXPECT_NE(e.wait<GroupReady>(), nullptr);
}

TEST(Rendezvous, ANodeThatDisagreesFailsTheGroupEverywhereNamingTheFile) {
  const std::uint16_t port = free_port();
  Events a, b;
  auto hub = Rendezvous::start(node(0, port), a.handler());
  auto other = Rendezvous::start(node(1, port), b.handler());
  ASSERT_TRUE(hub && other);
  Key changed = part_of(1);
  changed.files[0].digest = digest_of("changed");
  hub->contribute(part_of(0));
  other->contribute(changed);
  for (Events* e : {&a, &b}) {
    const auto* failed = e->wait<GroupFailed>();
    ASSERT_NE(failed, nullptr);
    EXPECT_EQ(failed->error.reason, Reason::mismatch);
    EXPECT_NE(failed->error.message.find("config.json"), std::string::npos) << failed->error.message;
  }
}

TEST(Rendezvous, ANodeThatNeverComesIsNamed) {
  Events a;
  RendezvousOptions options = node(0, free_port());
  options.timeout = 300ms;
  auto hub = Rendezvous::start(options, a.handler());
  ASSERT_TRUE(hub);
  hub->contribute(part_of(0));
  const auto* failed = a.wait<GroupFailed>();
  ASSERT_NE(failed, nullptr);
  EXPECT_EQ(failed->error.reason, Reason::timeout);
  EXPECT_NE(failed->error.message.find("node 1 never came"), std::string::npos) << failed->error.message;
}

TEST(Rendezvous, AHubThatNeverComesIsNamed) {
  Events b;
  RendezvousOptions options = node(1, free_port());
  options.timeout = 500ms;
  auto other = Rendezvous::start(options, b.handler());
  ASSERT_TRUE(other);
  const auto* failed = b.wait<GroupFailed>();
  ASSERT_NE(failed, nullptr);
  EXPECT_EQ(failed->error.reason, Reason::timeout);
  EXPECT_NE(failed->error.message.find("node 0 never answered"), std::string::npos) << failed->error.message;
}

TEST(Rendezvous, ANodeThatLeavesBeforeReadyFailsTheOthers) {
  const std::uint16_t port = free_port();
  for (const std::uint32_t leaver : {0u, 1u}) {
    Events events[2];
    std::optional<Rendezvous> nodes[2];
    for (std::uint32_t rank : {0u, 1u}) {
      auto member = Rendezvous::start(node(rank, port), events[rank].handler());
      ASSERT_TRUE(member) << member.error().message;
      nodes[rank] = std::move(*member);
      nodes[rank]->contribute(part_of(rank));
    }
    ASSERT_NE(events[1].wait<GroupAgreed>(), nullptr);
    ASSERT_NE(events[0].wait<GroupAgreed>(), nullptr);
    nodes[leaver].reset();
    const auto* failed = events[1 - leaver].wait<GroupFailed>();
    ASSERT_NE(failed, nullptr);
    EXPECT_NE(failed->error.message.find(leaver == 0 ? "host-a" : "host-b"), std::string::npos)
        << failed->error.message;
  }
}

TEST(Rendezvous, AFailureIsToldEverywhereWithItsReason) {
  const std::uint16_t port = free_port();
  Events a, b;
  auto hub = Rendezvous::start(node(0, port), a.handler());
  auto other = Rendezvous::start(node(1, port), b.handler());
  ASSERT_TRUE(hub && other);
  other->contribute(part_of(1));
  other->fail_group(Error{Reason::corrupt, "rank 3: m.safetensors at byte 7"});
  for (Events* e : {&a, &b}) {
    const auto* failed = e->wait<GroupFailed>();
    ASSERT_NE(failed, nullptr);
    EXPECT_EQ(failed->error.reason, Reason::corrupt);
    EXPECT_NE(failed->error.message.find("host-b: rank 3: m.safetensors at byte 7"), std::string::npos)
        << failed->error.message;
  }
}

TEST(Rendezvous, StrangersBlockNobody) {
  const std::uint16_t port = free_port();
  Events a, b;
  auto hub = Rendezvous::start(node(0, port), a.handler());
  ASSERT_TRUE(hub);
  std::vector<Fd> strangers;
  for (int i = 0; i < 100; ++i) {  // more than the hub keeps
    Result<Fd> fd = rendezvous::start_connect("127.0.0.1", port);
    ASSERT_TRUE(fd);
    if (i % 3 == 1) (void)!write(fd->get(), "GET / HTTP/1.0\r\n\r\n", 18);
    strangers.push_back(std::move(*fd));
  }
  RendezvousOptions thief = node(1, port);
  thief.token = "wrong";
  Events t;
  auto impostor = Rendezvous::start(thief, t.handler());
  ASSERT_TRUE(impostor);
  ASSERT_NE(t.wait<GroupFailed>(), nullptr) << "a wrong token must end the connection";

  auto other = Rendezvous::start(node(1, port), b.handler());
  ASSERT_TRUE(other);
  hub->contribute(part_of(0));
  other->contribute(part_of(1));
  EXPECT_NE(a.wait<GroupAgreed>(), nullptr);
  hub->ready();
  other->ready();
  EXPECT_NE(a.wait<GroupReady>(), nullptr);
  EXPECT_NE(b.wait<GroupReady>(), nullptr);
}

TEST(Rendezvous, ASilentNodeIsGone) {
  const std::uint16_t port = free_port();
  Events a;
  RendezvousOptions options = node(0, port);
  options.silence = 400ms;
  auto hub = Rendezvous::start(options, a.handler());
  ASSERT_TRUE(hub);
  Result<Fd> mute = rendezvous::start_connect("127.0.0.1", port);
  ASSERT_TRUE(mute);
  const auto join =
      rendezvous::encode(rendezvous::Join{"open sesame", rendezvous::kVersion, 1, 2, "target", "host-b"});
  std::this_thread::sleep_for(50ms);
  ASSERT_EQ(send(mute->get(), join.data(), join.size(), 0), static_cast<ssize_t>(join.size()));
  const auto* failed = a.wait<GroupFailed>();
  ASSERT_NE(failed, nullptr);
  EXPECT_EQ(failed->error.reason, Reason::timeout);
  EXPECT_NE(failed->error.message.find("host-b: fell silent"), std::string::npos) << failed->error.message;
}

TEST(Rendezvous, RefusesWhatCannotWork) {
  Events e;
  RendezvousOptions tokenless = node(0, free_port());
  tokenless.token.clear();
  EXPECT_EQ(Rendezvous::start(tokenless, e.handler()).error().key, "rendezvous-token-file");
  RendezvousOptions elsewhere = node(0, free_port());
  elsewhere.master_addr = "192.0.2.1";  // reserved for documentation: never this machine's
  EXPECT_EQ(Rendezvous::start(elsewhere, e.handler()).error().reason, Reason::invalid);
  const std::uint16_t port = free_port();
  auto first = Rendezvous::start(node(0, port), e.handler());
  ASSERT_TRUE(first);
  EXPECT_EQ(Rendezvous::start(node(0, port), e.handler()).error().reason, Reason::busy);
}

TEST(Rendezvous, ASecondNodeOfTheSameRankAndAnotherRoleAreRefused) {
  const std::uint16_t port = free_port();
  Events a, b, again, draft;
  auto hub = Rendezvous::start(node(0, port), a.handler());
  auto other = Rendezvous::start(node(1, port), b.handler());
  ASSERT_TRUE(hub && other);
  other->contribute(part_of(1));
  hub->contribute(part_of(0));
  ASSERT_NE(b.wait<GroupAgreed>(), nullptr);
  auto twin = Rendezvous::start(node(1, port), again.handler());
  const auto* busy = again.wait<GroupFailed>();
  ASSERT_NE(busy, nullptr);
  EXPECT_EQ(busy->error.reason, Reason::busy) << busy->error.message;
  RendezvousOptions wrong_port = node(1, port);
  wrong_port.role = Role::draft0;
  auto stray = Rendezvous::start(wrong_port, draft.handler());
  const auto* mismatch = draft.wait<GroupFailed>();
  ASSERT_NE(mismatch, nullptr);
  EXPECT_EQ(mismatch->error.reason, Reason::mismatch) << mismatch->error.message;
  EXPECT_EQ(a.wait<GroupFailed>(100ms), nullptr) << "the group must not suffer";
}

}  // namespace
}  // namespace wcache

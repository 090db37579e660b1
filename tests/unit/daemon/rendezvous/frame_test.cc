#include "daemon/rendezvous/frame.h"

#include <gtest/gtest.h>

#include <random>

namespace wcache::rendezvous {
namespace {

std::vector<std::byte> body_of(const Frame& frame) {
  std::vector<std::byte> bytes = encode(frame);
  bytes.erase(bytes.begin(), bytes.begin() + 4);
  return bytes;
}

TEST(RendezvousFrame, EveryKindComesBackAsItWas) {
  const Result<Frame> join = decode(body_of(Join{"secret", 1, 3, 4, "draft0", "host-d, rank 3"}));
  ASSERT_TRUE(join);
  const auto& j = std::get<Join>(*join);
  EXPECT_EQ(j.token, "secret");
  EXPECT_EQ(j.node_rank, 3u);
  EXPECT_EQ(j.nnodes, 4u);
  EXPECT_EQ(j.role, "draft0");
  EXPECT_EQ(j.label, "host-d, rank 3");

  Key key;
  key.role = Role::draft0;
  key.layout = Layout::sharded;
  key.tp_size = 8;
  key.files = {{"a", 5, digest_of("a")}, {"b/c", 0, digest_of("")}};
  const Result<Frame> part = decode(body_of(Part{key}));
  ASSERT_TRUE(part);
  EXPECT_EQ(std::get<Part>(*part).key.canonical(), key.canonical());

  const Result<Frame> failed =
      decode(body_of(Failed{"host-b", Error{Reason::over_budget, "too large", "buy more"}}));
  ASSERT_TRUE(failed);
  EXPECT_EQ(std::get<Failed>(*failed).error.reason, Reason::over_budget);
  EXPECT_EQ(std::get<Failed>(*failed).error.hint, "buy more");
  EXPECT_TRUE(std::holds_alternative<NodeReady>(*decode(body_of(NodeReady{}))));
  EXPECT_TRUE(std::holds_alternative<AllReady>(*decode(body_of(AllReady{}))));
  EXPECT_TRUE(std::holds_alternative<Alive>(*decode(body_of(Alive{}))));
}

TEST(RendezvousFrame, DamagedBytesAreRefusedOrReadButNeverCrash) {
  Key key;
  key.files = {{"model.safetensors", 5, digest_of("a")}};
  const std::vector<std::byte> good = body_of(Part{key});
  std::mt19937 random(3);
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::byte> bytes = good;
    for (int n = 0; n < 3; ++n) bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    if (random() % 4 == 0) bytes.resize(random() % bytes.size());
    const Result<Frame> frame = decode(bytes);
    if (!frame) {
      EXPECT_FALSE(frame.error().message.empty());
    }
  }
}

}  // namespace
}  // namespace wcache::rendezvous

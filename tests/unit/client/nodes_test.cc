#include "client/nodes.h"

#include <gtest/gtest.h>

#include <fstream>

#include "tests/unit/client/temporary_directory.h"

namespace wcache {
namespace {

RunDir::Environment no_variables() {
  return [](const char*) { return std::nullopt; };
}
RunDir::Environment with_token(std::string token) {
  return [token = std::move(token)](const char* name) {
    return std::string_view(name) == "WCACHE_RENDEZVOUS_TOKEN" ? std::optional(token) : std::nullopt;
  };
}

NodeWords two_nodes() {
  NodeWords words;
  words.nnodes = "2";
  words.node_rank = "1";
  words.master_addr = "10.0.0.1";
  return words;
}

void expect_refused(const NodeWords& words, const std::string& key, std::uint32_t tp_size = 4,
                    const RunDir::Environment& environment = with_token("secret")) {
  const Result<NodesPlan> nodes = plan_nodes(words, tp_size, environment);
  ASSERT_FALSE(nodes);
  EXPECT_EQ(nodes.error().reason, Reason::invalid);
  EXPECT_EQ(nodes.error().key, key) << nodes.error().message;
}

TEST(Nodes, WithoutWordsThereIsOneAndNoPort) {
  const NodesPlan nodes = plan_nodes({}, 3, no_variables()).value();
  EXPECT_TRUE(nodes.single());
  EXPECT_EQ(nodes.port, 0);
  EXPECT_EQ(nodes.draft_port, 0);
}

TEST(Nodes, TheDraftMeetsAtThePortBehindTheTargets) {
  NodesPlan nodes = plan_nodes(two_nodes(), 4, with_token("secret")).value();
  EXPECT_EQ(nodes.count, 2U);
  EXPECT_EQ(nodes.rank, 1U);
  EXPECT_EQ(nodes.port, kDefaultMasterPort);
  EXPECT_EQ(nodes.draft_port, kDefaultMasterPort + 1);
  EXPECT_EQ(nodes.token, "secret");
  NodeWords words = two_nodes();
  words.master_port = "65535";
  expect_refused(words, "--draft-master-port");
  words.draft_master_port = "1";
  EXPECT_EQ(plan_nodes(words, 4, with_token("secret"))->draft_port, 1);
}

TEST(Nodes, OnePortForTwoGroupsIsRefusedOnOneNodeToo) {
  NodeWords words;
  words.draft_master_port = std::to_string(kDefaultMasterPort);
  expect_refused(words, "--draft-master-port");
  words.master_port = "4000";
  EXPECT_TRUE(plan_nodes(words, 1, no_variables()));
  words.draft_master_port = "4000";
  expect_refused(words, "--draft-master-port");
}

TEST(Nodes, WhatIsNoNumberOrOutOfRangeIsRefusedWithItsOption) {
  for (const char* word : {"0", "two", "-1", "2 ", "5000", "4294967298"}) {
    NodeWords words = two_nodes();
    words.nnodes = word;
    expect_refused(words, "--nnodes");
  }
  for (const char* word : {"0", "65536", "http"}) {
    NodeWords words = two_nodes();
    words.master_port = word;
    expect_refused(words, "--master-port");
  }
  NodeWords words = two_nodes();
  words.node_rank = "2";
  expect_refused(words, "--node-rank");
  words.nnodes = "";
  words.node_rank = "1";
  expect_refused(words, "--node-rank");
}

TEST(Nodes, RanksAreSharedEvenly) {
  expect_refused(two_nodes(), "--tensor-parallel-size", 1);
  expect_refused(two_nodes(), "--tensor-parallel-size", 3);
  EXPECT_TRUE(plan_nodes(two_nodes(), 2, with_token("secret")));
}

TEST(Nodes, SeveralNeedAnAddressAndAToken) {
  NodeWords words = two_nodes();
  expect_refused(words, "--rendezvous-token-file", 4, no_variables());
  expect_refused(words, "--rendezvous-token-file", 4, with_token(std::string(5000, 'x')));
  words.master_addr = "";
  expect_refused(words, "--master-addr");
}

TEST(Nodes, TheFileGoesBeforeTheVariable) {
  const TemporaryDirectory directory;
  NodeWords words = two_nodes();
  words.token_file = directory / "token";
  expect_refused(words, "--rendezvous-token-file");
  std::ofstream(words.token_file) << "from the file\n";
  EXPECT_EQ(plan_nodes(words, 4, with_token("secret"))->token, "from the file");
  std::ofstream(words.token_file) << "\n";
  expect_refused(words, "--rendezvous-token-file");
  std::ofstream(words.token_file) << std::string(5000, 'x');
  expect_refused(words, "--rendezvous-token-file");
  words.token_file = directory.path();
  expect_refused(words, "--rendezvous-token-file");
}

}  // namespace
}  // namespace wcache

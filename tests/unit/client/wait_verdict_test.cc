#include "client/wait_verdict.h"

#include <gtest/gtest.h>

namespace wcache {
namespace {

GroupStatus group(std::string role, std::string name, State state, std::string path = {}) {
  GroupStatus status;
  status.role = std::move(role);
  status.name = std::move(name);
  status.fingerprint = "00112233445566778899aabbccddeeff";
  status.state = state;
  status.path = std::move(path);
  return status;
}

NodeStatus node(std::vector<GroupStatus> groups, bool mounted = true) {
  NodeStatus status;
  status.run_dir = "/run/wcache";
  if (mounted) status.mount = MountStatus{"/mnt/wcache", 9, true, "", {}};
  status.groups = std::move(groups);
  return status;
}

TEST(Judge, WaitsForDaemonsToAppear) {
  const WaitVerdict nothing = judge(node({}), {}, false);
  EXPECT_FALSE(nothing.done);
  EXPECT_FALSE(nothing.failure);
  EXPECT_EQ(nothing.missing.reason, Reason::not_running);
  const WaitVerdict other = judge(node({group("target", "a", State::ready, "/p")}), {"", "b", ""}, false);
  EXPECT_FALSE(other.done);
  EXPECT_EQ(other.missing.reason, Reason::not_found);
}

TEST(Judge, ReadyAndShown) {
  const WaitVerdict verdict = judge(node({group("target", "a", State::ready, "/p")}), {}, false);
  EXPECT_TRUE(verdict.done);
  EXPECT_EQ(verdict.paths, std::vector<std::string>{"/p"});
}

TEST(Judge, ReadyButNotShownYet) {
  EXPECT_FALSE(judge(node({group("target", "a", State::ready)}), {}, false).done);
  EXPECT_FALSE(judge(node({group("target", "a", State::ready)}, false), {}, true).done);
  const WaitVerdict without = judge(node({group("target", "a", State::ready)}, false), {}, false);
  EXPECT_TRUE(without.done);
  EXPECT_EQ(without.paths, std::vector<std::string>{"-"});
}

TEST(Judge, EveryKnownGroupWithoutAName) {
  const NodeStatus both =
      node({group("target", "a", State::ready, "/p"), group("draft0", "a", State::filling)});
  const WaitVerdict verdict = judge(both, {}, false);
  EXPECT_FALSE(verdict.done);
  EXPECT_EQ(verdict.missing.reason, Reason::not_ready);
  EXPECT_TRUE(judge(both, {"target", "", ""}, false).done);
}

TEST(Judge, ANameMeansATargetUnlessTheRoleIsGiven) {
  const NodeStatus both =
      node({group("target", "a", State::ready, "/p"), group("draft0", "a", State::filling)});
  EXPECT_TRUE(judge(both, {"", "a", ""}, false).done);
  EXPECT_FALSE(judge(both, {"draft0", "a", ""}, false).done);
}

TEST(Judge, AnOrphanServesItsFilesUnlessTheyWereOnADevice) {
  GroupStatus orphan = group("target", "a", State::orphaned, "/p");
  RankStatus rank;
  rank.state = State::orphaned;
  rank.tier = "host";
  orphan.ranks.push_back(rank);
  EXPECT_TRUE(judge(node({orphan}), {}, false).done);
  orphan.ranks.front().tier = "cuda";
  const WaitVerdict verdict = judge(node({orphan}), {}, false);
  EXPECT_FALSE(verdict.done);
  EXPECT_EQ(verdict.missing.reason, Reason::not_ready);
  EXPECT_FALSE(verdict.missing.hint.empty());
}

TEST(Judge, AFailedGroupEndsItWithExitCode1) {
  GroupStatus failed = group("target", "a", State::failed);
  failed.reason = "over-budget";
  failed.message = "--memory-limit is 1 GiB";
  const WaitVerdict verdict = judge(node({failed}), {}, false);
  ASSERT_TRUE(verdict.failure);
  EXPECT_EQ(exit_code(verdict.failure->reason), 1);
  EXPECT_NE(verdict.failure->message.find("over-budget: --memory-limit is 1 GiB"), std::string::npos);
}

}  // namespace
}  // namespace wcache

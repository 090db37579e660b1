#include "client/node_status.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "client/node_status_json.h"
#include "tests/unit/client/status_server.h"
#include "tests/unit/client/temporary_directory.h"

namespace wcache {
namespace {

using Kind = RunDir::SocketKind;

const std::string kPrint = "00112233445566778899aabbccddeeff";

RankStatus rank_of(State state, std::int32_t pid, std::string fingerprint = kPrint) {
  RankStatus rank;
  rank.role = "target";
  rank.name = "model";
  rank.source = "/models/model";
  rank.fingerprint = std::move(fingerprint);
  rank.layout = "checkpoint";
  rank.state = state;
  rank.pid = pid;
  rank.tier = "host";
  rank.nbytes = 1000;
  rank.tensors = 3;
  rank.tp_size = 1;
  rank.since = 100 + pid;
  rank.survives = true;
  rank.holders_complete = true;
  return rank;
}

StatusAnswer answer(Kind kind, std::vector<RankStatus> ranks) {
  StatusAnswer answer{kind, {}};
  answer.reply.pid = 7;
  answer.reply.ranks = std::move(ranks);
  return answer;
}

StatusAnswer mount_answer(std::vector<std::string> entries, bool passthrough = true) {
  StatusAnswer answer{Kind::mount, {}};
  answer.reply.mount = {"/mnt/wcache", 9, passthrough, passthrough ? "" : "no rights", std::move(entries)};
  return answer;
}

TEST(MergeStatus, NothingRunningIsNoGroupAndNoMount) {
  const NodeStatus node = merge_status("/run/wcache", {});
  EXPECT_TRUE(node.groups.empty());
  EXPECT_FALSE(node.mount);
}

TEST(MergeStatus, TheDaemonIsBelievedBeforeItsLauncher) {
  RankStatus old = rank_of(State::filling, 11, "");
  const NodeStatus node = merge_status(
      "/run/wcache", {answer(Kind::launcher, {old}), answer(Kind::rank, {rank_of(State::ready, 11)})});
  ASSERT_EQ(node.groups.size(), 1U);
  EXPECT_EQ(node.groups[0].state, State::ready);
  EXPECT_EQ(node.groups[0].fingerprint, kPrint);
  EXPECT_EQ(node.launchers, std::vector<std::int32_t>{7});
}

TEST(MergeStatus, WhatRanksOnDevicesHoldAlikeCountsOnce) {
  RankStatus first = rank_of(State::filling, 11), second = rank_of(State::filling, 12);
  second.rank = 1;
  first.filled = 600;
  second.filled = 400;
  first.rate = 20;
  second.rate = 10;
  const NodeStatus node =
      merge_status("/run/wcache", {answer(Kind::rank, {first}), answer(Kind::rank, {second})});
  ASSERT_EQ(node.groups.size(), 1U);
  const GroupStatus& group = node.groups[0];
  ASSERT_EQ(group.ranks.size(), 2U);
  EXPECT_TRUE(group.alike());
  EXPECT_EQ(group.nbytes, 1000U);
  EXPECT_EQ(group.tensors, 3U);
  EXPECT_EQ(group.filled(), 400U);
  EXPECT_EQ(group.rate(), 10);
}

TEST(MergeStatus, AFailedSecondTryDoesNotHideTheGroupThatServes) {
  RankStatus again = rank_of(State::failed, 12);
  again.reason = "busy";
  RankStatus unknown = rank_of(State::failed, 13, "");
  const NodeStatus node = merge_status("/run/wcache", {answer(Kind::launcher, {again, unknown}),
                                                       answer(Kind::rank, {rank_of(State::ready, 11)})});
  ASSERT_EQ(node.groups.size(), 1U);
  EXPECT_EQ(node.groups[0].state, State::ready);
  EXPECT_EQ(node.groups[0].ranks[0].pid, 11);
  EXPECT_EQ(node.groups[0].reason, "");
}

TEST(MergeStatus, AFailureOfAnotherSourceStaysVisible) {
  RankStatus failed = rank_of(State::failed, 12, "");
  failed.source = "/models/other";
  failed.reason = "corrupt";
  failed.message = "model.safetensors: hole";
  const NodeStatus node = merge_status(
      "/run/wcache", {answer(Kind::launcher, {failed}), answer(Kind::rank, {rank_of(State::ready, 11)})});
  ASSERT_EQ(node.groups.size(), 2U);
  const GroupStatus& other = node.groups[node.groups[0].state == State::failed ? 0 : 1];
  EXPECT_EQ(other.reason, "corrupt");
  EXPECT_EQ(other.message, "model.safetensors: hole");
}

TEST(MergeStatus, AReadyDaemonReplacesWhatTheMountRemembers) {
  const NodeStatus node = merge_status("/run/wcache", {answer(Kind::mount, {rank_of(State::orphaned, 10)}),
                                                       answer(Kind::rank, {rank_of(State::ready, 11)})});
  ASSERT_EQ(node.groups.size(), 1U);
  EXPECT_EQ(node.groups[0].state, State::ready);
}

TEST(MergeStatus, OfAnOrphanTheLauncherKnowsWhatItIsAndTheMountWhoHoldsIt) {
  RankStatus left = rank_of(State::orphaned, 0);
  left.pages = "huge";
  left.holders = {{60, "gone", 1}};
  RankStatus held = rank_of(State::orphaned, 0);
  held.holders = {{50, "vllm", 5}};
  held.survives = false;
  held.since = 500;
  const NodeStatus node =
      merge_status("/run/wcache", {answer(Kind::mount, {held}), answer(Kind::launcher, {left})});
  ASSERT_EQ(node.groups.size(), 1U);
  ASSERT_EQ(node.groups[0].ranks.size(), 1U);
  EXPECT_EQ(node.groups[0].ranks[0].pages, "huge");
  EXPECT_TRUE(node.groups[0].ranks[0].survives);
  ASSERT_EQ(node.groups[0].holders.size(), 1U);
  EXPECT_EQ(node.groups[0].holders[0].pid, 50);
}

TEST(MergeStatus, TheNewestOfSeveralTriesCounts) {
  RankStatus first = rank_of(State::failed, 12, ""), second = rank_of(State::failed, 13, "");
  first.reason = "io";
  second.reason = "corrupt";
  const NodeStatus node =
      merge_status("/run/wcache", {answer(Kind::launcher, {first}), answer(Kind::launcher, {second})});
  ASSERT_EQ(node.groups.size(), 1U);
  EXPECT_EQ(node.groups[0].reason, "corrupt");
}

TEST(MergeStatus, AGroupIsWhatItsLastRankIs) {
  RankStatus second = rank_of(State::filling, 12);
  second.rank = 1;
  second.filled = 400;
  second.rate = 50;
  RankStatus first = rank_of(State::ready, 11);
  first.tp_size = second.tp_size = 2;
  const NodeStatus node = merge_status("/run/wcache", {answer(Kind::launcher, {second, first})});
  ASSERT_EQ(node.groups.size(), 1U);
  const GroupStatus& group = node.groups[0];
  EXPECT_EQ(group.state, State::filling);
  EXPECT_EQ(group.nbytes, 2000U);
  EXPECT_EQ(group.tensors, 6U);
  EXPECT_EQ(group.filled(), 400U);
  EXPECT_DOUBLE_EQ(group.rate(), 50);
  ASSERT_EQ(group.ranks.size(), 2U);
  EXPECT_EQ(group.ranks[1].rank, 1U);
}

TEST(MergeStatus, HoldersOfAllRanksOnceEach) {
  RankStatus first = rank_of(State::ready, 11);
  first.holders = {{50, "vllm", 5}, {40, "python", 6}};
  RankStatus second = rank_of(State::ready, 12);
  second.rank = 1;
  second.holders = {{50, "vllm", 5}};
  second.holders_complete = false;
  const NodeStatus node =
      merge_status("/run/wcache", {answer(Kind::rank, {first}), answer(Kind::rank, {second})});
  ASSERT_EQ(node.groups.size(), 1U);
  ASSERT_EQ(node.groups[0].holders.size(), 2U);
  EXPECT_EQ(node.groups[0].holders[0].pid, 40);
  EXPECT_FALSE(node.groups[0].holders_complete);
}

TEST(MergeStatus, ThePathIsThereOnceTheMountShowsIt) {
  const auto group = [](std::vector<std::string> entries) {
    return merge_status("/run/wcache",
                        {answer(Kind::rank, {rank_of(State::ready, 11)}), mount_answer(entries)})
        .groups[0];
  };
  EXPECT_EQ(group({}).path, "");
  EXPECT_EQ(group({"draft0/" + kPrint}).path, "");
  EXPECT_EQ(group({"target/" + kPrint}).path, "/mnt/wcache/target/" + kPrint);
}

TEST(MergeStatus, AGroupWithoutAllOfItsRanksIsNotReady) {
  RankStatus zero = rank_of(State::ready, 10), one = rank_of(State::ready, 11);
  zero.node_ranks = one.node_ranks = 2;
  one.rank = 1;
  EXPECT_EQ(merge_status("/r", {answer(Kind::rank, {zero}), answer(Kind::rank, {one})}).groups[0].state,
            State::ready);
  const NodeStatus node = merge_status("/r", {answer(Kind::rank, {zero})});
  EXPECT_EQ(node.groups[0].state, State::failed);
  EXPECT_EQ(node.groups[0].reason, "not-ready");
  EXPECT_EQ(node.groups[0].message, "1 of its 2 ranks are here, nobody knows of the others");
  one.state = State::filling;  // its launcher knows of it
  EXPECT_EQ(
      merge_status("/r", {answer(Kind::rank, {zero}), answer(Kind::launcher, {zero, one})}).groups[0].state,
      State::filling);
}

TEST(MergeStatus, APairNamesEachOther) {
  RankStatus draft = rank_of(State::ready, 11, std::string(32, 'd'));
  draft.role = "draft0";
  StatusAnswer mount = mount_answer({"target/" + kPrint, "draft0/" + draft.fingerprint});
  mount.reply.mount.pairs = {{kPrint, draft.fingerprint}};
  const NodeStatus node = merge_status(
      "/r", {answer(Kind::rank, {rank_of(State::ready, 10)}), answer(Kind::rank, {draft}), mount});
  ASSERT_EQ(node.groups.size(), 2U);
  EXPECT_EQ(node.groups[0].draft, "/mnt/wcache/draft0/" + draft.fingerprint);
  EXPECT_EQ(node.groups[0].target, "");
  EXPECT_EQ(node.groups[1].target, "/mnt/wcache/target/" + kPrint);
  EXPECT_EQ(node.groups[1].draft, "");
  EXPECT_NE(to_json(node).find("\"draft\": \"/mnt/wcache/draft0/"), std::string::npos);
}

TEST(MergeStatus, WithoutPassthroughNothingOutlivesTheMount) {
  const auto survives = [](bool passthrough) {
    return merge_status("/run/wcache",
                        {answer(Kind::rank, {rank_of(State::ready, 11)}), mount_answer({}, passthrough)})
        .groups[0]
        .ranks[0]
        .survives;
  };
  EXPECT_TRUE(survives(true));
  EXPECT_FALSE(survives(false));
}

TEST(MergeStatus, TargetsComeBeforeDrafts) {
  RankStatus draft = rank_of(State::ready, 12);
  draft.role = "draft0";
  draft.name = "a";
  const NodeStatus node = merge_status(
      "/run/wcache", {answer(Kind::rank, {draft}), answer(Kind::rank, {rank_of(State::ready, 11)})});
  ASSERT_EQ(node.groups.size(), 2U);
  EXPECT_EQ(node.groups[0].role, "target");
}

TEST(CollectStatus, AbsentRunDirectoryIsANodeWithNothingRunning) {
  const TemporaryDirectory directory;
  const auto node = collect_status(directory / "absent");
  ASSERT_TRUE(node);
  EXPECT_TRUE(node->groups.empty());
}

TEST(CollectStatus, UnsafeRunDirectoryIsAnError) {
  const TemporaryDirectory directory;
  std::filesystem::permissions(directory.path(), std::filesystem::perms(0755));
  const auto node = collect_status(directory.path());
  ASSERT_FALSE(node);
  EXPECT_EQ(node.error().reason, Reason::denied);
}

/// A socket that takes connections and never answers.
Fd deaf_socket(const std::string& path) {
  Fd fd = Fd::adopt(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  EXPECT_EQ(bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  EXPECT_EQ(listen(fd.get(), 8), 0);
  return fd;
}

TEST(CollectStatus, AsksEverySocketAndNamesTheSilentOnes) {
  const TemporaryDirectory directory;
  const RunDir run_dir = RunDir::open(directory.path()).value();
  StatusReply rank, mount;
  rank.ranks = {rank_of(State::ready, 11)};
  mount.mount = mount_answer({"target/" + kPrint}).reply.mount;
  const Fingerprint print{digest_from_hex(kPrint).value()};
  const StatusServer daemon(run_dir.rank_socket(Role::target, print, "HOST-0"), rank);
  const StatusServer wcachefs(run_dir.mount_socket(), mount);
  const std::string deaf_path = run_dir.launcher_socket(123);
  const Fd deaf = deaf_socket(deaf_path);
  { const Fd stale = deaf_socket(run_dir.launcher_socket(124)); }  // its file stays: a crash's left-over
  std::ofstream(directory / "wcached.log") << "not a socket\n";

  const auto node = collect_status(directory.path(), std::chrono::milliseconds(300));
  ASSERT_TRUE(node);
  ASSERT_EQ(node->groups.size(), 1U);
  EXPECT_EQ(node->groups[0].path, "/mnt/wcache/target/" + kPrint);
  EXPECT_EQ(node->silent, std::vector<std::string>{deaf_path});
}

TEST(StatusJson, SpellsTheContract) {
  RankStatus rank = rank_of(State::ready, 11);
  rank.device_uuid = "HOST-0";
  rank.pages = "huge";
  rank.fill_path = "io_uring-direct";
  rank.socket = "/run/wcache/x.sock";
  rank.filled = 1000;
  rank.rate = 2.5e9;
  rank.holders = {{50, "vllm", 1.5}};
  const auto json = nlohmann::json::parse(to_json(
      merge_status("/run/wcache", {answer(Kind::rank, {rank}), mount_answer({"target/" + kPrint}, false)})));
  EXPECT_TRUE(json["version"].is_string());
  EXPECT_EQ(json["protocol"], 1);
  EXPECT_EQ(json["run_dir"], "/run/wcache");
  EXPECT_EQ(
      json["mount"],
      nlohmann::json({{"path", "/mnt/wcache"}, {"pid", 9}, {"passthrough", false}, {"reason", "no rights"}}));
  const auto& group = json["groups"][0];
  EXPECT_EQ(group["role"], "target");
  EXPECT_EQ(group["name"], "model");
  EXPECT_EQ(group["fingerprint"], kPrint);
  EXPECT_EQ(group["state"], "ready");
  EXPECT_EQ(group["path"], "/mnt/wcache/target/" + kPrint);
  EXPECT_EQ(group["layout"], "checkpoint");
  EXPECT_EQ(group["source"], "/models/model");
  EXPECT_EQ(group["nbytes"], 1000);
  EXPECT_EQ(group["tensors"], 3);
  EXPECT_EQ(group["tp_size"], 1);
  EXPECT_EQ(group["holders"], nlohmann::json::parse(R"([{"pid":50,"command":"vllm","since":1.5}])"));
  EXPECT_FALSE(group.contains("reason"));
  EXPECT_FALSE(group.contains("message"));
  EXPECT_EQ(group["ranks"][0],
            nlohmann::json::parse(R"({"rank":0,"state":"ready","pid":11,"device_uuid":"HOST-0","tier":"host",
              "pages":"huge","socket":"/run/wcache/x.sock","nbytes":1000,"filled":1000,"rate":2.5e9,
              "fill_path":"io_uring-direct","survives":false})"));
}

TEST(StatusJson, ARankOnADeviceTellsItsKindAndContext) {
  RankStatus rank = rank_of(State::ready, 11);
  rank.tier = "cuda";
  rank.ipc_kind = "cuda-vmm";
  const auto of = [](const RankStatus& one) {
    return nlohmann::json::parse(
        to_json(merge_status("/r", {answer(Kind::rank, {one})})))["groups"][0]["ranks"][0];
  };
  EXPECT_EQ(of(rank)["ipc_kind"], "cuda-vmm");
  EXPECT_EQ(of(rank)["cuda_context"], false);
  EXPECT_EQ(of(rank)["device_nbytes"], 0);
  rank.device_nbytes = std::uint64_t{1} << 40;
  EXPECT_EQ(of(rank)["device_nbytes"], std::uint64_t{1} << 40);
  rank.context = true;
  EXPECT_EQ(of(rank)["cuda_context"], true);
  rank.tier = "host";
  EXPECT_FALSE(of(rank).contains("cuda_context"));
  EXPECT_FALSE(of(rank).contains("device_nbytes"));
  EXPECT_FALSE(of(rank).contains("ipc_kind"));
}

TEST(StatusJson, WhatIsNotKnownIsAbsent) {
  RankStatus rank;
  rank.role = "target";
  rank.source = "/models/model";
  const auto json = nlohmann::json::parse(to_json(merge_status("/r", {answer(Kind::launcher, {rank})})));
  EXPECT_FALSE(json.contains("mount"));
  const auto& group = json["groups"][0];
  for (const char* name : {"fingerprint", "path", "nbytes", "tensors", "reason", "layout"})
    EXPECT_FALSE(group.contains(name)) << name;
  EXPECT_EQ(group["ranks"][0], nlohmann::json::parse(R"({"rank":0,"state":"starting"})"));
}

TEST(StatusJson, BytesThatAreNoUtf8DoNotBreakIt) {
  RankStatus rank = rank_of(State::ready, 11);
  rank.source = "/models/\xff";
  EXPECT_TRUE(nlohmann::json::accept(to_json(merge_status("/r", {answer(Kind::rank, {rank})}))));
}

TEST(StatusJson, AnErrorHasItsFourMembers) {
  const auto json = nlohmann::json::parse(to_json(Error{Reason::over_budget, "m", "h", "--memory-limit"}));
  EXPECT_EQ(json,
            nlohmann::json::parse(
                R"({"error":{"reason":"over-budget","message":"m","hint":"h","key":"--memory-limit"}})"));
}

TEST(NodeStatusJson, AnUnsafeRunDirectoryIsSaid) {
  const TemporaryDirectory directory;
  std::filesystem::permissions(directory.path(), std::filesystem::perms(0755));
  const auto json = nlohmann::json::parse(node_status_json(directory.path()));
  EXPECT_EQ(json["groups"], nlohmann::json::array());
  EXPECT_EQ(json["error"]["reason"], "denied");
}

}  // namespace
}  // namespace wcache

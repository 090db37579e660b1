#include "client/plan_groups.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "tests/unit/client/temporary_directory.h"

namespace wcache {
namespace {

/// A safetensors file of tensors with 64 bytes each.
std::string safetensors(const std::vector<std::string>& names) {
  std::string header = "{";
  std::size_t at = 0;
  for (const std::string& name : names) {
    header += (at == 0 ? "" : ",") + ("\"" + name) + R"(":{"dtype":"U8","shape":[64],"data_offsets":[)" +
              std::to_string(at) + "," + std::to_string(at + 64) + "]}";
    at += 64;
  }
  header += "}";
  const std::uint64_t length = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, sizeof length);
  return file + header + std::string(at, 'x');
}

class PlanGroups : public testing::Test {
 protected:
  std::string file(const std::string& name, const std::string& bytes) {
    std::ofstream(directory_ / name, std::ios::binary) << bytes;
    return directory_ / name;
  }
  void make_mtp_model() {
    file("config.json",
         R"({"architectures":["MiMoForCausalLM"],"model_type":"mimo","num_hidden_layers":1,
             "num_nextn_predict_layers":1})");
    std::vector<std::string> names = {"lm_head.weight", "model.embed_tokens.weight",
                                      "model.mtp_layers.0.input_proj.weight"};
    for (int i = 0; i < 200; ++i) names.push_back("model.layers.0.w" + std::to_string(i));
    file("model.safetensors", safetensors(names));
  }
  void make_sharded_model(int ranks) {
    file("config.json", R"({"architectures":["Qwen2ForCausalLM"],"model_type":"qwen2"})");
    for (int rank = 0; rank < ranks; ++rank)
      file("model-rank-" + std::to_string(rank) + "-part-0.safetensors", safetensors({"model.layers.0.w"}));
  }

  LoadWish wish(std::uint32_t tp_size = 1) const {
    LoadWish wish;
    wish.route.target = directory_.path();
    wish.route.tp_size = tp_size;
    return wish;
  }
  static NodesPlan node(std::uint32_t rank, std::uint32_t count) {
    NodesPlan nodes;
    nodes.count = count;
    nodes.rank = rank;
    nodes.port = 29501;
    nodes.draft_port = 29502;
    return nodes;
  }
  PlannedGroups planned(const LoadWish& wish) {
    Result<PlannedGroups> groups = plan_groups(wish, cache_);
    if (!groups) ADD_FAILURE() << groups.error().message;
    return groups ? std::move(*groups) : PlannedGroups{};
  }
  static std::vector<std::string> devices_of(const GroupPlan& group) {
    std::vector<std::string> devices;
    for (const RankPlan& rank : group.ranks) {
      EXPECT_EQ(rank.device_uuid, "HOST-" + std::to_string(rank.rank));
      devices.push_back(rank.device_uuid);
    }
    return devices;
  }

  const std::string mtp_ = R"({"method":"mtp","num_speculative_tokens":1})";
  const TemporaryDirectory directory_;
  DigestCache cache_;
};

using Devices = std::vector<std::string>;

TEST_F(PlanGroups, AModelAloneIsOneGroupWithoutANote) {
  make_mtp_model();
  const PlannedGroups groups = planned(wish());
  ASSERT_EQ(groups.groups.size(), 1U);
  EXPECT_EQ(groups.draft_note, "");
  const GroupPlan& target = groups.groups[0];
  EXPECT_EQ(target.role, Role::target);
  EXPECT_EQ(target.source, directory_.path());
  EXPECT_EQ(devices_of(target), Devices{"HOST-0"});
  EXPECT_FALSE(target.grouped());
  EXPECT_FALSE(target.refusal);
  EXPECT_GE(target.ranks[0].memory, target.nbytes);
}

TEST_F(PlanGroups, ACachedDraftIsASecondGroupOfOneRank) {
  make_mtp_model();
  LoadWish with = wish(2);
  with.route.speculative = mtp_;
  with.name = "chat";
  const PlannedGroups groups = planned(with);
  ASSERT_EQ(groups.groups.size(), 2U);
  EXPECT_EQ(groups.groups[0].layout, Layout::checkpoint);
  EXPECT_EQ(devices_of(groups.groups[0]), Devices{"HOST-0"}) << "one daemon serves every rank";
  const GroupPlan& draft = groups.groups[1];
  EXPECT_EQ(draft.role, Role::draft0);
  EXPECT_EQ(draft.layout, Layout::mtp);
  EXPECT_EQ(draft.name, "chat");
  EXPECT_EQ(devices_of(draft), Devices{"HOST-0"});
  EXPECT_EQ(draft.key_words,
            (std::vector<std::string>{"--tensor-parallel-size", "2", "--speculative-config", mtp_}));
}

TEST_F(PlanGroups, ADraftThatIsNotCachedIsANote) {
  make_mtp_model();
  LoadWish with = wish();
  with.route.speculative = mtp_;
  with.route.draft_methods = {};
  const PlannedGroups groups = planned(with);
  EXPECT_EQ(groups.groups.size(), 1U);
  EXPECT_NE(groups.draft_note.find("no draft0 group (disk): "), std::string::npos) << groups.draft_note;
}

TEST_F(PlanGroups, AnInvalidConfigNamesItsKey) {
  make_mtp_model();
  LoadWish with = wish();
  with.route.speculative = R"({"method":"mtp","tensor_parallel_size":2})";
  const Result<PlannedGroups> groups = plan_groups(with, cache_);
  ASSERT_FALSE(groups);
  EXPECT_EQ(groups.error().reason, Reason::invalid);
  EXPECT_EQ(groups.error().key, "tensor_parallel_size");
}

TEST_F(PlanGroups, EveryRankOfAShardedCheckpointHasADaemon) {
  make_sharded_model(4);
  const PlannedGroups groups = planned(wish(4));
  ASSERT_EQ(groups.groups.size(), 1U);
  const GroupPlan& group = groups.groups[0];
  EXPECT_EQ(devices_of(group), (Devices{"HOST-0", "HOST-1", "HOST-2", "HOST-3"}));
  EXPECT_EQ(group.layout, Layout::sharded);
  EXPECT_EQ(group.tp_size, 4U);
  EXPECT_TRUE(group.grouped());
  EXPECT_EQ(group.port, 0);
}

TEST_F(PlanGroups, ANodeStartsItsOwnRanks) {
  make_sharded_model(4);
  LoadWish second = wish(4);
  second.nodes = node(1, 2);
  const GroupPlan group = planned(second).groups.at(0);
  EXPECT_EQ(devices_of(group), (Devices{"HOST-2", "HOST-3"}));
  EXPECT_EQ(group.port, 29501);
  EXPECT_TRUE(group.fingerprint.empty());
  second.nodes = node(3, 4);
  EXPECT_EQ(devices_of(planned(second).groups.at(0)), Devices{"HOST-3"});
  EXPECT_TRUE(planned(second).groups.at(0).grouped()) << "alone here, but not alone";
}

TEST_F(PlanGroups, AnUnshardedCheckpointHasOneDaemonOnEveryNode) {
  make_mtp_model();
  LoadWish second = wish(4);
  second.route.speculative = mtp_;
  second.nodes = node(1, 2);
  const PlannedGroups groups = planned(second);
  ASSERT_EQ(groups.groups.size(), 2U);
  EXPECT_EQ(devices_of(groups.groups[0]), Devices{"HOST-0"});
  EXPECT_EQ(groups.groups[0].port, 29501);
  EXPECT_EQ(groups.groups[1].port, 29502);
}

TEST_F(PlanGroups, AWrongTensorParallelSizeIsRefused) {
  make_sharded_model(2);
  for (const std::uint32_t tp_size : {1U, 3U, 4U}) {
    const Result<PlannedGroups> groups = plan_groups(wish(tp_size), cache_);
    ASSERT_FALSE(groups) << tp_size;
    EXPECT_EQ(groups.error().reason, Reason::invalid);
    EXPECT_EQ(groups.error().key, "--tensor-parallel-size");
  }
}

TEST_F(PlanGroups, OnDevicesEveryRankHasADaemonThoughAllHoldTheSame) {
  make_mtp_model();
  LoadWish with = wish(2);
  with.route.speculative = mtp_;
  with.devices.devices = {{"GPU-1", DeviceIpc::vmm}, {"GPU-2", DeviceIpc::legacy}};
  const PlannedGroups groups = planned(with);
  ASSERT_EQ(groups.groups.size(), 2U);
  EXPECT_EQ(groups.device_note, "");
  for (const GroupPlan& group : groups.groups) {
    ASSERT_EQ(group.ranks.size(), 2U);
    EXPECT_EQ(group.tp_size, 1U) << "of the key: the same as in host memory";
    EXPECT_TRUE(group.grouped());
    for (const std::size_t i : {0U, 1U}) {
      const RankPlan& rank = group.ranks[i];
      EXPECT_EQ(rank.rank, i);
      EXPECT_EQ(rank.device_uuid, with.devices.devices[i].uuid);
      EXPECT_EQ(rank.ipc, with.devices.devices[i].ipc);
      EXPECT_GE(rank.device_memory, std::uint64_t{2} << 20);
      EXPECT_GT(rank.memory, rank.device_memory) << "other files and the manifest are in host memory";
    }
  }
}

TEST_F(PlanGroups, ANodeHasDevicesForItsOwnRanks) {
  make_mtp_model();
  LoadWish second = wish(4);
  second.nodes = node(1, 2);
  EXPECT_EQ(ranks_on_node(4, second.nodes), 2U);
  EXPECT_EQ(ranks_on_node(1, second.nodes), 1U);
  second.devices.devices = {{"GPU-1", DeviceIpc::vmm}, {"GPU-2", DeviceIpc::vmm}};
  const GroupPlan group = planned(second).groups.at(0);
  ASSERT_EQ(group.ranks.size(), 2U);
  EXPECT_EQ(group.ranks[0].rank, 2U);
  EXPECT_EQ(group.ranks[0].device_uuid, "GPU-1");
  EXPECT_EQ(group.ranks[1].rank, 3U);
  EXPECT_EQ(group.ranks[1].device_uuid, "GPU-2");
}

TEST_F(PlanGroups, WhatNoDeviceHoldsIsInHostMemoryUnlessADeviceWasAskedFor) {
  file("config.json", R"({"architectures":["Qwen2ForCausalLM"],"model_type":"qwen2"})");
  file("pytorch_model.bin", std::string(4096, 'x'));
  LoadWish with = wish(2);
  with.devices.devices = {{"GPU-1", DeviceIpc::vmm}, {"GPU-2", DeviceIpc::vmm}};
  const PlannedGroups groups = planned(with);
  EXPECT_EQ(devices_of(groups.groups.at(0)), Devices{"HOST-0"});
  EXPECT_FALSE(groups.groups[0].ranks[0].ipc);
  EXPECT_NE(groups.device_note.find("pytorch_model.bin is no safetensors"), std::string::npos)
      << groups.device_note;
  with.devices.ipc = DeviceIpc::vmm;
  const Result<PlannedGroups> no_ipc = plan_groups(with, cache_);
  ASSERT_FALSE(no_ipc);
  EXPECT_EQ(no_ipc.error().reason, Reason::invalid);
  EXPECT_EQ(no_ipc.error().key, "--ipc");
  with.devices.asked = true;
  const Result<PlannedGroups> refused = plan_groups(with, cache_);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().reason, Reason::unsupported);
  EXPECT_EQ(refused.error().key, "--device");
}

TEST_F(PlanGroups, ADraftThatTheDevicesCannotHoldIsRefusedAlone) {
  make_mtp_model();
  const TemporaryDirectory draft;
  std::ofstream(draft / "config.json") << R"({"architectures":["Qwen2ForCausalLM"],"model_type":"qwen2"})";
  std::ofstream(draft / "pytorch_model.bin") << std::string(4096, 'x');
  LoadWish with = wish();
  with.route.speculative =
      R"({"method":"draft_model","model":")" + draft.path() + R"(","num_speculative_tokens":1})";
  with.route.draft_methods = {"draft_model"};
  with.devices.devices = {{"GPU-1", DeviceIpc::vmm}};
  PlannedGroups groups = planned(with);
  ASSERT_EQ(groups.groups.size(), 2U);
  EXPECT_EQ(groups.groups[0].ranks[0].device_uuid, "GPU-1");
  EXPECT_EQ(devices_of(groups.groups[1]), Devices{"HOST-0"});
  EXPECT_NE(groups.device_note.find("draft0 weights are held in host memory"), std::string::npos);
  with.devices.asked = true;
  groups = planned(with);
  ASSERT_EQ(groups.groups.size(), 2U);
  EXPECT_FALSE(groups.groups[0].refusal);
  ASSERT_TRUE(groups.groups[1].refusal);
  EXPECT_EQ(groups.groups[1].refusal->reason, Reason::unsupported);
}

TEST_F(PlanGroups, TheMemoryLimitCountsWhatLiesOnDevices) {
  make_mtp_model();
  LoadWish with = wish(2);
  with.devices.devices = {{"GPU-1", DeviceIpc::vmm}, {"GPU-2", DeviceIpc::vmm}};
  const std::uint64_t one = planned(with).groups.at(0).ranks[0].memory;
  with.memory_limit = 2 * one;
  EXPECT_FALSE(planned(with).groups.at(0).refusal);
  with.memory_limit = 2 * one - 1;
  EXPECT_TRUE(planned(with).groups.at(0).refusal);
}

TEST_F(PlanGroups, TheTargetTakesItsMemoryFirstAndTheDraftWhatIsLeft) {
  make_mtp_model();
  LoadWish with = wish();
  with.route.speculative = mtp_;
  const PlannedGroups free = planned(with);
  const std::uint64_t target = free.groups.at(0).ranks[0].memory, draft = free.groups.at(1).ranks[0].memory;
  EXPECT_EQ(free.groups[0].ranks[0].memory_limit, 0U);

  with.memory_limit = target + draft;
  PlannedGroups limited = planned(with);
  EXPECT_EQ(limited.groups[0].ranks[0].memory_limit, target + draft);
  EXPECT_EQ(limited.groups[1].ranks[0].memory_limit, draft);
  EXPECT_FALSE(limited.groups[1].refusal);

  with.memory_limit = target + draft - 1;
  limited = planned(with);
  EXPECT_FALSE(limited.groups[0].refusal);
  ASSERT_TRUE(limited.groups[1].refusal);
  EXPECT_EQ(limited.groups[1].refusal->reason, Reason::over_budget);
  EXPECT_NE(limited.groups[1].refusal->message.find("--memory-limit leaves"), std::string::npos);

  with.memory_limit = draft;
  limited = planned(with);
  EXPECT_TRUE(limited.groups[0].refusal);
  EXPECT_FALSE(limited.groups[1].refusal) << "what the target cannot use is left";
}

}  // namespace
}  // namespace wcache

#include "draftroute/mtp_plan.h"

#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>

namespace wcache::draftroute {
namespace {

using nlohmann::json;

/// A checkpoint in memory: only names, sizes and offsets matter to a plan.
class Model {
 public:
  Model& shard(std::string name, std::vector<TensorInfo> tensors) {
    SourceFile file;
    file.name = std::move(name);
    file.kind = FileKind::safetensors;
    std::uint64_t at = 1000;
    for (TensorInfo& tensor : tensors) at = (tensor.offset = at) + tensor.nbytes;
    file.identity.nbytes = at;
    file.tensors = std::move(tensors);
    checkpoint_.files.push_back(std::move(file));
    return *this;
  }
  Model& other(std::string name) {
    SourceFile file;
    file.name = std::move(name);
    file.identity.nbytes = 10;
    checkpoint_.files.push_back(std::move(file));
    return *this;
  }
  Checkpoint done() {
    std::sort(checkpoint_.files.begin(), checkpoint_.files.end(),
              [](const SourceFile& a, const SourceFile& b) { return a.name < b.name; });
    checkpoint_.root = "/models/m";
    return std::move(checkpoint_);
  }

 private:
  Checkpoint checkpoint_;
};

TensorInfo tensor(std::string name, std::string dtype = "BF16", std::uint64_t nbytes = 64) {
  return {std::move(name), std::move(dtype), {nbytes}, 0, nbytes};
}

const ImagePlan& draft_of(const EntryPlan& plan) {
  for (const ImagePlan& image : plan.images)
    if (image.name == "model.safetensors") return image;
  static const ImagePlan kNone;
  return kNone;
}

std::vector<std::string> names_of(const EntryPlan& plan) {
  std::vector<std::string> names;
  for (const TensorInfo& t : draft_of(plan).tensors) names.push_back(t.name);
  std::sort(names.begin(), names.end());
  return names;
}

const MtpFamily& family(const char* model_type, const char* architecture = "") {
  const MtpFamily* found = find_family({model_type, architecture});
  EXPECT_NE(found, nullptr);
  return *found;
}

TEST(MtpPlan, ExtraLayersAreTakenByTheWholeNumber) {
  Model model;
  model.shard("a.safetensors",
              {tensor("model.embed_tokens.weight"), tensor("model.layers.6.mlp.weight"),
               tensor("model.layers.61.eh_proj.weight"), tensor("model.layers.610.mlp.weight")});
  const auto plan = plan_mtp(model.done(), family("deepseek_v3"), 1, 61, SharedTensors::omit);
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(names_of(*plan), std::vector<std::string>{"model.layers.61.eh_proj.weight"});
  EXPECT_EQ(plan->layout, Layout::mtp);
  EXPECT_EQ(plan->role, Role::draft0);
}

TEST(MtpPlan, SharedTensorsComeWithTheirScalesUnlessTheDraftHasItsOwn) {
  const auto shards = [](bool own) {
    Model model;
    std::vector<TensorInfo> tensors = {tensor("model.layers.2.eh_proj.weight"),
                                       tensor("model.layers.2.eh_proj.weight_scale_inv", "F32", 4),
                                       tensor("model.embed_tokens.weight"),
                                       tensor("lm_head.weight", "F8_E4M3"),
                                       tensor("lm_head.weight_scale_inv", "F32", 4),
                                       tensor("model.layers.1.x.weight")};
    if (own) tensors.push_back(tensor("model.layers.2.shared_head.head.weight"));
    model.shard("a.safetensors", std::move(tensors));
    return model.done();
  };
  const auto plain = plan_mtp(shards(false), family("deepseek_v3"), 1, 2, SharedTensors::include);
  ASSERT_TRUE(plain);
  EXPECT_EQ(
      names_of(*plain),
      (std::vector<std::string>{"lm_head.weight", "lm_head.weight_scale_inv", "model.embed_tokens.weight",
                                "model.layers.2.eh_proj.weight", "model.layers.2.eh_proj.weight_scale_inv"}));
  const auto own = plan_mtp(shards(true), family("deepseek_v3"), 1, 2, SharedTensors::include);
  ASSERT_TRUE(own);
  EXPECT_EQ(names_of(*own),
            (std::vector<std::string>{"model.embed_tokens.weight", "model.layers.2.eh_proj.weight",
                                      "model.layers.2.eh_proj.weight_scale_inv",
                                      "model.layers.2.shared_head.head.weight"}));
  const auto omitted = plan_mtp(shards(false), family("deepseek_v3"), 1, 2, SharedTensors::omit);
  ASSERT_TRUE(omitted);
  EXPECT_EQ(names_of(*omitted).size(), 2u);
}

TEST(MtpPlan, TheImageIsAValidSafetensorsFileMadeOfExactlyItsPieces) {
  Model model;
  model.other("config.json").other("model.safetensors.index.json").other("tokenizer.json");
  model.shard("m-1.safetensors",
              {tensor("mtp.norm.weight", "U8", 3), tensor("model.embed_tokens.weight", "BF16", 10)});
  model.shard("m-2.safetensors", {tensor("mtp.fc.weight", "F32", 8), tensor("mtp.empty", "F16", 0)});
  const auto plan = plan_mtp(model.done(), family("qwen3_next"), std::nullopt, 4, SharedTensors::include);
  ASSERT_TRUE(plan) << plan.error().message;

  std::vector<std::string> files;
  for (const ImagePlan& image : plan->images) files.push_back(image.name);
  EXPECT_EQ(files, (std::vector<std::string>{"config.json", "model.safetensors", "tokenizer.json"}));

  const ImagePlan& image = draft_of(*plan);
  std::uint64_t header_nbytes = 0;
  std::memcpy(&header_nbytes, image.head.data(), 8);
  ASSERT_EQ(header_nbytes + 8, image.head.size());
  const json header = json::parse(image.head.substr(8));
  std::uint64_t at = image.head.size();
  for (const Piece& piece : image.pieces) {
    EXPECT_EQ(piece.image_offset, at);
    at += piece.nbytes;
  }
  EXPECT_EQ(at, image.nbytes);
  EXPECT_EQ(image.nbytes, image.head.size() + 21);
  for (const TensorInfo& t : image.tensors) {
    EXPECT_EQ(header[t.name]["dtype"], t.dtype);
    EXPECT_EQ(header[t.name]["data_offsets"][0], t.offset - image.head.size());
    EXPECT_EQ(header[t.name]["data_offsets"][1], t.offset + t.nbytes - image.head.size());
  }
  EXPECT_EQ(header.size(), image.tensors.size() + 1);
  EXPECT_EQ(image.tensors.front().name, "mtp.fc.weight")
      << "the widest element first, so that all are aligned";
}

TEST(MtpPlan, SaysWhatWasLookedForWhenTheTensorsAreMissing) {
  Model model;
  model.shard("a.safetensors", {tensor("model.layers.0.x.weight")});
  const auto plan = plan_mtp(model.done(), family("deepseek_v3"), 1, 61, SharedTensors::include);
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().reason, Reason::invalid);
  EXPECT_NE(plan.error().message.find("model.layers.61.*"), std::string::npos) << plan.error().message;
}

TEST(MtpPlan, EachPromisedLayerMustBeThere) {
  Model model;
  model.shard("a.safetensors", {tensor("model.layers.4.eh_proj.weight")});
  const auto plan = plan_mtp(model.done(), family("deepseek_v3"), 2, 4, SharedTensors::include);
  ASSERT_FALSE(plan);
  EXPECT_NE(plan.error().message.find("model.layers.5.*"), std::string::npos) << plan.error().message;
}

TEST(MtpPlan, TensorsThatTheConfigDoesNotPromiseAreAContradiction) {
  for (const std::optional<std::uint32_t> layers :
       {std::optional<std::uint32_t>(0), std::optional<std::uint32_t>()}) {
    Model model;
    model.shard("a.safetensors", {tensor("model.layers.4.eh_proj.weight")});
    const auto plan = plan_mtp(model.done(), family("deepseek_v3"), layers, 4, SharedTensors::include);
    ASSERT_FALSE(plan);
    EXPECT_EQ(plan.error().reason, Reason::invalid);
    EXPECT_NE(plan.error().message.find("model.layers.4.eh_proj.weight"), std::string::npos)
        << plan.error().message;
  }
}

TEST(MtpPlan, ANameInTwoFilesIsRefused) {
  Model model;
  model.shard("a.safetensors", {tensor("mtp.fc.weight")}).shard("b.safetensors", {tensor("mtp.fc.weight")});
  const auto plan = plan_mtp(model.done(), family("qwen3_next"), 1, 4, SharedTensors::include);
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().reason, Reason::corrupt);
}

TEST(MtpPlan, RankShardedCheckpointsAreUnsupported) {
  Model model;
  model.shard("model-rank-0-part-0.safetensors", {tensor("mtp.fc.weight")});
  const auto plan = plan_mtp(model.done(), family("qwen3_next"), 1, 4, SharedTensors::include);
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().reason, Reason::unsupported);
}

TEST(MtpPlan, EveryFamilyNamesItsTensors) {
  EXPECT_EQ(expand_prefixes(family("deepseek_v3"), 2, 61),
            (std::vector<std::vector<std::string>>{{"model.layers.61."}, {"model.layers.62."}}));
  EXPECT_EQ(expand_prefixes(family("", "MiMoForCausalLM"), 1, 36),
            (std::vector<std::vector<std::string>>{{"model.mtp_layers."}}));
  EXPECT_EQ(expand_prefixes(family("", "MiMoV2FlashForCausalLM"), 1, 48),
            (std::vector<std::vector<std::string>>{{"model.mtp.layers.0."}}));
}

}  // namespace
}  // namespace wcache::draftroute

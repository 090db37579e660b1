#include "core/entry_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/core/sample_plan.h"

namespace wcache {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(EntryPlan, WordsOfRolesAndLayoutsParse) {
  for (Role role : {Role::target, Role::draft0}) EXPECT_EQ(role_from_string(to_string(role)).value(), role);
  for (Layout layout : {Layout::checkpoint, Layout::mtp, Layout::sharded, Layout::published})
    EXPECT_EQ(layout_from_string(to_string(layout)).value(), layout);
  EXPECT_EQ(role_from_string("draft1").error().reason, Reason::invalid);
  EXPECT_EQ(role_from_string("draft1").error().key, "role");
  EXPECT_EQ(layout_from_string("").error().reason, Reason::invalid);
}

TEST(EntryPlan, CheckpointBecomesImagesByteForByte) {
  Checkpoint checkpoint;
  checkpoint.root = "/models/tiny";
  checkpoint.name = "tiny";
  checkpoint.architecture = "A";
  checkpoint.dtype = "D";
  checkpoint.quantization = "Q";
  checkpoint.left_out = {{"x.bin", "why"}};
  SourceFile empty;
  empty.name = "empty.txt";
  SourceFile weights;
  weights.name = "model.safetensors";
  weights.kind = FileKind::safetensors;
  weights.identity.nbytes = 100;
  weights.identity.mtime_ns = 5;
  weights.tensors = {{"t", "U8", {30}, 20, 30}};
  checkpoint.files = {empty, weights};

  const EntryPlan plan = plan_checkpoint(std::move(checkpoint), Role::draft0);
  EXPECT_EQ(plan.role, Role::draft0);
  EXPECT_EQ(plan.layout, Layout::checkpoint);
  EXPECT_EQ(plan.name, "tiny");
  EXPECT_EQ(plan.source, "/models/tiny");
  EXPECT_EQ(plan.architecture + plan.dtype + plan.quantization, "ADQ");
  EXPECT_EQ(plan.left_out.size(), 1u);
  EXPECT_EQ(plan.tp_size, 1u);
  ASSERT_EQ(plan.images.size(), 2u);

  EXPECT_THAT(plan.images[0].pieces, IsEmpty());
  EXPECT_THAT(plan.images[0].segments, IsEmpty());
  const ImagePlan& image = plan.images[1];
  EXPECT_EQ(image.name, "model.safetensors");
  EXPECT_EQ(image.kind, FileKind::safetensors);
  EXPECT_EQ(image.nbytes, 100u);
  EXPECT_EQ(image.mtime_ns, 5);
  EXPECT_TRUE(image.head.empty());
  ASSERT_EQ(image.pieces.size(), 1u);
  EXPECT_EQ(image.pieces[0].source, 1u);
  EXPECT_EQ(image.pieces[0].image_offset + image.pieces[0].source_offset, 0u);
  EXPECT_EQ(image.pieces[0].nbytes, 100u);
  EXPECT_THAT(image.segments, ElementsAre(Segment{0, 20}, Segment{20, 30}, Segment{50, 50}));
  EXPECT_EQ(image.tensors.size(), 1u);
}

TEST(EntryPlan, CountsBytesAndTensors) {
  const EntryPlan plan = testing::sample_plan();
  EXPECT_EQ(plan.nbytes(), 22u + 20 + 10 + 5);
  EXPECT_EQ(plan.weight_nbytes(), 30u);
  EXPECT_EQ(plan.tensor_count(), 4u);
}

Checkpoint sharded_for_two() {
  Checkpoint checkpoint;
  checkpoint.root = "/models/sharded";
  for (const char* name :
       {"config.json", "model-rank-0-part-0.safetensors", "model-rank-1-part-0.safetensors",
        "model-rank-1-part-1.safetensors", "stray.bin"}) {
    SourceFile file;
    file.name = name;
    file.identity.nbytes = 20;
    if (file.name.ends_with(".safetensors")) {
      file.kind = FileKind::safetensors;
      file.tensors = {{"t", "U8", {4}, 16, 4}};
      file.tensors[0].shadowed = file.name != "model-rank-0-part-0.safetensors";
    } else if (file.name == "stray.bin") {
      file.kind = FileKind::opaque;
    }
    checkpoint.files.push_back(file);
  }
  return checkpoint;
}

std::vector<std::string> names_of(const EntryPlan& plan) {
  std::vector<std::string> names;
  for (const ImagePlan& image : plan.images) names.push_back(image.name);
  return names;
}

TEST(PlanRank, ARankHoldsItsOwnFilesAndThoseOfNoRank) {
  EXPECT_EQ(shard_ranks(sharded_for_two()), 2u);
  const auto zero = plan_rank(sharded_for_two(), Role::target, 0, 2);
  const auto one = plan_rank(sharded_for_two(), Role::target, 1, 2);
  ASSERT_TRUE(zero && one);
  EXPECT_THAT(names_of(*zero), ElementsAre("config.json", "model-rank-0-part-0.safetensors"));
  EXPECT_THAT(names_of(*one), ElementsAre("config.json", "model-rank-1-part-0.safetensors",
                                          "model-rank-1-part-1.safetensors"));
  EXPECT_EQ(one->layout, Layout::sharded);
  EXPECT_EQ(one->rank, 1u);
  EXPECT_EQ(one->tp_size, 2u);
  EXPECT_EQ(one->images[1].tensors.size(), 1u) << "a name that other ranks have too is still this rank's";
}

TEST(PlanRank, AnotherNumberOfRanksIsRefused) {
  for (const std::uint32_t tp : {1u, 3u, 4u}) {
    const auto plan = plan_rank(sharded_for_two(), Role::target, 0, tp);
    ASSERT_FALSE(plan) << tp;
    EXPECT_EQ(plan.error().reason, Reason::invalid);
    EXPECT_EQ(plan.error().key, "--tensor-parallel-size");
    EXPECT_NE(plan.error().message.find("sharded for 2 ranks"), std::string::npos) << plan.error().message;
  }
}

TEST(PlanRank, ARankWithoutFilesIsNamed) {
  Checkpoint checkpoint = sharded_for_two();
  std::erase_if(checkpoint.files,
                [](const SourceFile& file) { return file.name.starts_with("model-rank-0"); });
  const auto plan = plan_rank(std::move(checkpoint), Role::target, 1, 2);
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().reason, Reason::corrupt);
  EXPECT_NE(plan.error().message.find("rank 0"), std::string::npos) << plan.error().message;
}

}  // namespace
}  // namespace wcache

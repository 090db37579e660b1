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

}  // namespace
}  // namespace wcache

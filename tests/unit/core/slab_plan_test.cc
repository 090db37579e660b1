#include "core/slab_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "tests/unit/core/sample_plan.h"

namespace wcache {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::wcache::testing::sample_image;
using ::wcache::testing::sample_plan;

constexpr std::uint64_t kGranularity = 4096;

/// A weight file of segments of these sizes.
ImagePlan weights(const std::string& name, const std::vector<std::uint64_t>& sizes) {
  std::vector<Segment> segments;
  std::uint64_t offset = 0;
  for (const std::uint64_t nbytes : sizes) {
    segments.push_back({offset, nbytes});
    offset += nbytes;
  }
  ImagePlan image = sample_image(name, FileKind::safetensors, {}, {}, segments);
  image.nbytes = offset;
  return image;
}

EntryPlan plan_of(std::vector<ImagePlan> images) {
  EntryPlan plan;
  plan.images = std::move(images);
  return plan;
}

/// Every segment has a place of its own, aligned, within its slab; returns what is wrong, if anything is.
std::string fault(const EntryPlan& plan, const SlabPlan& slabs) {
  struct Run {
    std::uint32_t slab;
    std::uint64_t begin, end;
  };
  std::vector<Run> runs;
  if (slabs.images.size() != plan.images.size()) return "images";
  for (std::size_t i = 0; i < plan.images.size(); ++i) {
    const std::size_t due = is_weights(plan.images[i].kind) ? plan.images[i].segments.size() : 0;
    if (slabs.images[i].size() != due) return "segments of " + plan.images[i].name;
    for (std::size_t s = 0; s < due; ++s) {
      const SlabPlace& place = slabs.images[i][s];
      if (place.offset % kSlabAlignment != 0) return "alignment";
      runs.push_back({place.slab, place.offset, place.offset + plan.images[i].segments[s].nbytes});
    }
  }
  std::sort(runs.begin(), runs.end(), [](const Run& a, const Run& b) {
    return std::pair(a.slab, a.begin) < std::pair(b.slab, b.begin);
  });
  for (std::size_t r = 0; r < runs.size(); ++r) {
    if (runs[r].slab >= slabs.slabs.size() || runs[r].end > slabs.slabs[runs[r].slab])
      return "beyond its slab";
    if (r > 0 && runs[r - 1].slab == runs[r].slab && runs[r - 1].end > runs[r].begin) return "overlap";
  }
  for (const std::uint64_t nbytes : slabs.slabs)
    if (nbytes == 0 || nbytes % kGranularity != 0) return "size of a slab";
  return {};
}

TEST(SlabPlan, PacksSegmentsInOrderAtAlignedPlaces) {
  const EntryPlan plan =
      plan_of({sample_image("config.json", FileKind::other, "{}"),
               weights("m-1.safetensors", {64, 1000, 256}), weights("m-2.safetensors", {64, 1})});
  const Result<SlabPlan> slabs = plan_slabs(plan, kGranularity, 1 << 20, 8);
  ASSERT_TRUE(slabs) << slabs.error().message;
  EXPECT_EQ(fault(plan, *slabs), "");
  EXPECT_THAT(slabs->slabs, ElementsAre(4096u));
  EXPECT_EQ(slabs->nbytes(), 4096u);
  EXPECT_THAT(slabs->images[0], IsEmpty()) << "what is no weights stays in host memory";
  EXPECT_THAT(slabs->images[1], ElementsAre(SlabPlace{0, 0}, SlabPlace{0, 256}, SlabPlace{0, 1280}));
  EXPECT_THAT(slabs->images[2], ElementsAre(SlabPlace{0, 1536}, SlabPlace{0, 1792}));
}

TEST(SlabPlan, ASlabIsClosedBeforeItIsPassed) {
  const EntryPlan plan = plan_of({weights("m.safetensors", {4096, 4096, 1, 9000, 256})});
  const Result<SlabPlan> slabs = plan_slabs(plan, kGranularity, 8192, 8);
  ASSERT_TRUE(slabs);
  EXPECT_EQ(fault(plan, *slabs), "");
  EXPECT_THAT(slabs->images[0], ElementsAre(SlabPlace{0, 0}, SlabPlace{0, 4096}, SlabPlace{1, 0},
                                            SlabPlace{2, 0}, SlabPlace{3, 0}));
  EXPECT_THAT(slabs->slabs, ElementsAre(8192u, 4096u, 12'288u, 4096u)) << "what is too large has its own";
}

TEST(SlabPlan, SlabsGrowWhereThereWouldBeTooMany) {
  const EntryPlan plan = plan_of({weights("m.safetensors", std::vector<std::uint64_t>(1000, 4096))});
  for (const std::size_t most : {std::size_t{1}, std::size_t{2}, std::size_t{8}, std::size_t{1000}}) {
    const Result<SlabPlan> slabs = plan_slabs(plan, kGranularity, 4096, most);
    ASSERT_TRUE(slabs);
    EXPECT_EQ(fault(plan, *slabs), "");
    EXPECT_LE(slabs->slabs.size(), most);
    EXPECT_EQ(slabs->nbytes(), 4'096'000u) << "nothing is lost to that";
  }
}

TEST(SlabPlan, OfNoWeightsThereAreNoSlabs) {
  const EntryPlan plan = plan_of({sample_image("config.json", FileKind::other, "{}")});
  const Result<SlabPlan> slabs = plan_slabs(plan, kGranularity, 4096, 8);
  ASSERT_TRUE(slabs);
  EXPECT_THAT(slabs->slabs, IsEmpty());
  EXPECT_EQ(slabs->nbytes(), 0u);
}

TEST(SlabPlan, OnlySafetensorsCanBeOnADevice) {
  for (const FileKind kind : {FileKind::gguf, FileKind::opaque}) {
    const EntryPlan plan = plan_of({sample_image("m.bin", kind, "bytes")});
    const Result<SlabPlan> slabs = plan_slabs(plan, kGranularity, 4096, 8);
    ASSERT_FALSE(slabs);
    EXPECT_EQ(slabs.error().reason, Reason::unsupported);
    EXPECT_EQ(slabs.error().key, "--device");
    EXPECT_THAT(slabs.error().message, ::testing::HasSubstr("m.bin"));
  }
}

TEST(SlabPlan, AnyPlanIsPackedWithoutOverlap) {
  std::mt19937 random(11);
  for (int round = 0; round < 200; ++round) {
    std::vector<ImagePlan> images;
    for (std::size_t i = 0; i < 1 + random() % 4; ++i) {
      std::vector<std::uint64_t> sizes(1 + random() % 30);
      for (std::uint64_t& nbytes : sizes) nbytes = 1 + random() % (std::uint64_t{1} << (random() % 20));
      images.push_back(weights("m-" + std::to_string(i) + ".safetensors", sizes));
    }
    const EntryPlan plan = plan_of(std::move(images));
    const std::size_t most = 1 + random() % 10;
    const Result<SlabPlan> slabs = plan_slabs(plan, kGranularity, kGranularity << (random() % 8), most);
    ASSERT_TRUE(slabs);
    ASSERT_EQ(fault(plan, *slabs), "") << round;
    ASSERT_LE(slabs->slabs.size(), most);
  }
}

TEST(SlabParts, AreWhereAnyRangeOfTheImageLies) {
  const std::vector<Segment> segments{{0, 10}, {10, 1}, {11, 1000}, {1011, 5}};
  const std::vector<SlabPlace> places{{0, 0}, {0, 256}, {1, 0}, {0, 512}};
  for (std::uint64_t begin = 0; begin <= 1016; begin += 7)
    for (const std::uint64_t nbytes : {0, 1, 10, 12, 1016}) {
      std::uint64_t at = begin;
      for (const SlabPart& part : slab_parts(segments, places, begin, nbytes)) {
        EXPECT_EQ(part.image_offset, at);
        ASSERT_GT(part.nbytes, 0u);
        const auto segment = std::ranges::find_if(
            segments, [&](const Segment& s) { return at >= s.offset && at < s.offset + s.nbytes; });
        ASSERT_NE(segment, segments.end());
        EXPECT_LE(at + part.nbytes, segment->offset + segment->nbytes);
        const SlabPlace& place = places[static_cast<std::size_t>(segment - segments.begin())];
        EXPECT_EQ(part.place, (SlabPlace{place.slab, place.offset + at - segment->offset}));
        at += part.nbytes;
      }
      EXPECT_EQ(at, std::min<std::uint64_t>(begin + nbytes, 1016));
    }
  EXPECT_THAT(slab_parts({}, {}, 0, 10), IsEmpty());
  EXPECT_THAT(slab_parts(segments, places, 1016, 10), IsEmpty());
  EXPECT_THAT(slab_parts(segments, places, 5000, 10), IsEmpty());
}

}  // namespace
}  // namespace wcache

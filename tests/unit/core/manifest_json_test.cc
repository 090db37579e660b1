#include "core/manifest_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/unit/core/sample_plan.h"

namespace wcache {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::wcache::testing::digests_of_heads;
using ::wcache::testing::sample_image;
using ::wcache::testing::sample_plan;

class Manifest {
 public:
  explicit Manifest(const EntryPlan& plan, const Placement& placement = {"host", "HOST-0", "file"}) {
    const auto digests = digests_of_heads(plan);
    bytes_ = build_manifest(plan, digests, key_of(plan, digests).fingerprint(), placement).value();
  }
  ManifestView view() const { return ManifestView::open(bytes_).value(); }

 private:
  std::vector<std::byte> bytes_;
};

TEST(ManifestJson, SaysWhatTheManifestSays) {
  const Manifest manifest(sample_plan());
  const ManifestView view = manifest.view();
  const json parsed = json::parse(manifest_json(view));
  EXPECT_EQ(parsed["fingerprint"], to_hex(view.fingerprint()));
  EXPECT_EQ(parsed["role"], "target");
  EXPECT_EQ(parsed["layout"], "checkpoint");
  EXPECT_EQ(parsed["rank"], 0);
  EXPECT_EQ(parsed["tp_size"], 1);
  EXPECT_EQ(parsed["architecture"], "TinyForCausalLM");
  EXPECT_EQ(parsed["device_uuid"], "HOST-0");
  EXPECT_EQ(parsed["nbytes"], sample_plan().nbytes());

  ASSERT_EQ(parsed["files"].size(), view.file_count());
  const json& file = parsed["files"][2];
  EXPECT_EQ(file["name"], "model-00001.safetensors");
  EXPECT_EQ(file["kind"], "safetensors");
  EXPECT_EQ(file["nbytes"], 20);
  EXPECT_EQ(file["mtime_ns"], 1'700'000'000'123'456'789);
  EXPECT_EQ(file["tensors"], 2);
  EXPECT_EQ(file["digest"], to_hex(view.file(2)->digest));

  ASSERT_EQ(parsed["tensors"].size(), 4u);
  const json& tensor = parsed["tensors"][3];
  EXPECT_EQ(tensor["name"], "z.weight");
  EXPECT_EQ(tensor["dtype"], "BF16");
  EXPECT_EQ(tensor["shape"], json({1, 2}));
  EXPECT_EQ(tensor["file"], "model-00001.safetensors");
  EXPECT_EQ(tensor["offset"], 8);
  EXPECT_EQ(tensor["nbytes"], 4);
  EXPECT_EQ(tensor["digest"], to_hex(view.tensor(3)->digest));
  EXPECT_FALSE(tensor.contains("slab"));
  EXPECT_EQ(parsed["tensors"][2]["shape"], json::array());
}

TEST(ManifestJson, NamesSlabsWhereThereAreSome) {
  const Manifest manifest(sample_plan(), {"cuda", "GPU-1", "cuda-vmm"});
  const json parsed = json::parse(manifest_json(manifest.view()));
  EXPECT_EQ(parsed["tensors"][3]["slab"], 2);
  EXPECT_EQ(parsed["tensors"][3]["slab_offset"], 8);
}

TEST(ManifestJson, ListsTheSizesOfSlabs) {
  const EntryPlan plan = sample_plan();
  const auto digests = digests_of_heads(plan);
  const SlabPlan slabs = plan_slabs(plan, kSlabAlignment, 3 * kSlabAlignment, 100).value();
  const auto bytes =
      build_manifest(plan, digests, {}, {"cuda", "GPU-1", "cuda-vmm"}, std::nullopt, &slabs).value();
  const json parsed = json::parse(manifest_json(ManifestView::open(bytes).value()));
  EXPECT_EQ(parsed["slabs"], json({768, 512}));
  EXPECT_EQ(parsed["tensors"][2]["slab"], 1);
  EXPECT_EQ(parsed["tensors"][2]["slab_offset"], 256);
  EXPECT_FALSE(json::parse(manifest_json(Manifest(plan).view())).contains("slabs"));
}

TEST(ManifestJson, NamesThatAreNoUtf8ComeInHexToo) {
  const Manifest manifest(sample_plan());
  const json parsed = json::parse(manifest_json(manifest.view()));
  ASSERT_EQ(parsed["left_out"].size(), 2u);
  EXPECT_EQ(parsed["left_out"][0]["name"], "pytorch_model.bin");
  EXPECT_FALSE(parsed["left_out"][0].contains("name_hex"));
  EXPECT_EQ(parsed["left_out"][1]["name"], "x\"\\\n\xef\xbf\xbd");
  EXPECT_EQ(parsed["left_out"][1]["name_hex"], "78225c0aff");
}

TEST(ManifestJson, EmptyEntryIsValidToo) {
  const Manifest manifest(EntryPlan{});
  const json parsed = json::parse(manifest_json(manifest.view()));
  EXPECT_EQ(parsed["files"], json::array());
  EXPECT_EQ(parsed["tensors"], json::array());
  EXPECT_EQ(parsed["left_out"], json::array());
}

TEST(ManifestJson, ComesInPiecesForManyTensors) {
  EntryPlan plan;
  std::vector<TensorInfo> tensors;
  std::vector<Segment> segments;
  for (std::uint64_t i = 0; i < 20'000; ++i) {
    tensors.push_back({"layers." + std::to_string(i), "I8", {1}, i, 1});
    segments.push_back({i, 1});
  }
  plan.images.push_back(sample_image("model.safetensors", FileKind::safetensors, std::string(20'000, 'w'),
                                     std::move(tensors), std::move(segments)));
  const Manifest manifest(plan);
  std::string text;
  std::size_t largest = 0;
  write_manifest_json(manifest.view(), [&](std::string_view piece) {
    largest = std::max(largest, piece.size());
    text += piece;
  });
  EXPECT_LT(largest, 256u << 10);
  EXPECT_EQ(json::parse(text)["tensors"].size(), 20'000u);
}

TEST(FingerprintJson, ShowsEveryFieldOfTheKey) {
  const EntryPlan plan = sample_plan();
  const Manifest manifest(plan);
  const std::vector<ManifestView> ranks{manifest.view()};
  const auto text = fingerprint_json(ranks);
  ASSERT_TRUE(text) << text.error().message;
  const json parsed = json::parse(*text);
  EXPECT_EQ(parsed["fingerprint"], to_hex(ranks[0].fingerprint()));
  EXPECT_EQ(parsed["role"], "target");
  EXPECT_EQ(parsed["name"], "tiny");
  EXPECT_EQ(parsed["source"], "/models/tiny");
  EXPECT_EQ(parsed["fields"], json({{"key", 1}, {"role", "target"}, {"layout", "checkpoint"}}));
  ASSERT_EQ(parsed["files"].size(), plan.images.size());
  EXPECT_EQ(parsed["files"][0],
            json({{"name", "config.json"}, {"nbytes", 22}, {"digest", to_hex(ranks[0].file(0)->digest)}}));
  EXPECT_EQ(parsed["left_out"][0]["why"], "safetensors are present");
}

TEST(FingerprintJson, SaysHowAndWhereWhenAsked) {
  FingerprintText text;
  text.key.layout = Layout::sharded;
  text.key.tp_size = 4;
  text.key.files = {{"a", 1, digest_of("a")}, {"b", 2, digest_of("b")}};
  const std::vector<How> how{How::read, How::remembered};
  text.how = how;
  text.path = "/mnt/wcache/target/x";
  const json parsed = json::parse(fingerprint_json(text));
  EXPECT_EQ(parsed["path"], "/mnt/wcache/target/x");
  EXPECT_EQ(parsed["fields"]["tp_size"], 4);
  EXPECT_EQ(parsed["files"][0]["how"], "read");
  EXPECT_EQ(parsed["files"][1]["how"], "remembered");
  EXPECT_FALSE(parsed.contains("source"));
}

TEST(KeyOfManifests, IsTheKeyOfThePlan) {
  const EntryPlan plan = sample_plan();
  const Manifest manifest(plan);
  const std::vector<ManifestView> ranks{manifest.view()};
  EXPECT_EQ(key_of(ranks).value().canonical(), key_of(plan, digests_of_heads(plan)).canonical());
  EXPECT_EQ(key_of(ranks).value().fingerprint(), ranks[0].fingerprint());
}

TEST(KeyOfManifests, MergesTheFilesOfAllRanks) {
  const auto rank_of = [](std::uint32_t rank) {
    EntryPlan plan;
    plan.layout = Layout::sharded;
    plan.rank = rank;
    plan.tp_size = 2;
    plan.images.push_back(sample_image("config.json", FileKind::other, "{}"));
    plan.images.push_back(sample_image("model-rank-" + std::to_string(rank) + "-part-0.safetensors",
                                       FileKind::opaque, "rank " + std::to_string(rank)));
    return plan;
  };
  const Manifest zero(rank_of(0));
  const Manifest one(rank_of(1));
  const std::vector<ManifestView> ranks{one.view(), zero.view()};
  const auto key = key_of(ranks);
  ASSERT_TRUE(key);
  std::vector<std::string> names;
  for (const Key::File& file : key->files) names.push_back(file.name);
  EXPECT_THAT(names, ElementsAre("config.json", "model-rank-0-part-0.safetensors",
                                 "model-rank-1-part-0.safetensors"));

  const Manifest stranger(sample_plan());
  const std::vector<ManifestView> mixed{zero.view(), stranger.view()};
  EXPECT_EQ(key_of(mixed).error().reason, Reason::corrupt);
}

}  // namespace
}  // namespace wcache

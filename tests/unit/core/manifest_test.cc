#include "core/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <numeric>
#include <random>

#include "tests/unit/core/sample_plan.h"

namespace wcache {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::wcache::testing::digests_of_heads;
using ::wcache::testing::sample_image;
using ::wcache::testing::sample_plan;

std::vector<std::byte> build(const EntryPlan& plan) {
  const auto digests = digests_of_heads(plan);
  Result<std::vector<std::byte>> bytes =
      build_manifest(plan, digests, key_of(plan, digests).fingerprint(), Placement{"host", "HOST-0", "file"});
  EXPECT_TRUE(bytes.has_value());
  return bytes.value_or(std::vector<std::byte>());
}

/// The sample as on a device, where its segments lie in slabs of the smallest size.
struct OnDevice {
  explicit OnDevice(EntryPlan of) : plan(std::move(of)) {
    slabs = plan_slabs(plan, kSlabAlignment, kSlabAlignment, 100).value();
    const auto digests = digests_of_heads(plan);
    bytes = build_manifest(plan, digests, key_of(plan, digests).fingerprint(),
                           Placement{"cuda", "GPU-1", std::string(kIpcVmm)}, std::nullopt, &slabs)
                .value();
  }
  EntryPlan plan;
  SlabPlan slabs;
  std::vector<std::byte> bytes;
};

/// Many tensors in one file, two bytes each.
EntryPlan wide_plan(std::uint64_t count) {
  EntryPlan plan;
  plan.name = "wide";
  std::vector<TensorInfo> tensors;
  std::vector<Segment> segments;
  for (std::uint64_t i = 0; i < count; ++i) {
    tensors.push_back({"layers." + std::to_string(i) + ".weight", "BF16", {1}, 2 * i, 2});
    segments.push_back({2 * i, 2});
  }
  plan.images.push_back(sample_image("model.safetensors", FileKind::safetensors, std::string(2 * count, 'w'),
                                     std::move(tensors), std::move(segments)));
  return plan;
}

TEST(Manifest, CarriesTheEntrysFields) {
  const EntryPlan plan = sample_plan();
  const auto bytes = build(plan);
  const Result<ManifestView> view = ManifestView::open(bytes);
  ASSERT_TRUE(view) << view.error().message;
  EXPECT_EQ(view->role(), "target");
  EXPECT_EQ(view->layout(), "checkpoint");
  EXPECT_EQ(view->fingerprint(), key_of(plan, digests_of_heads(plan)).fingerprint());
  EXPECT_EQ(view->rank(), 0u);
  EXPECT_EQ(view->tp_size(), 1u);
  EXPECT_EQ(view->name(), "tiny");
  EXPECT_EQ(view->source(), "/models/tiny");
  EXPECT_EQ(view->architecture(), "TinyForCausalLM");
  EXPECT_EQ(view->dtype(), "bfloat16");
  EXPECT_EQ(view->quantization(), "fp8");
  EXPECT_EQ(view->placement().tier, "host");
  EXPECT_EQ(view->placement().device_uuid, "HOST-0");
  EXPECT_EQ(view->placement().ipc_kind, "file");
  EXPECT_EQ(view->nbytes(), plan.nbytes());
  const auto left_out = view->left_out();
  ASSERT_EQ(left_out.size(), 2u);
  EXPECT_EQ(left_out[0].name, "pytorch_model.bin");
  EXPECT_EQ(left_out[1].name, "x\"\\\n\xff");
  EXPECT_EQ(left_out[1].why, "not UTF-8");
}

TEST(Manifest, FileRowsAreThePlansImages) {
  const EntryPlan plan = sample_plan();
  const auto digests = digests_of_heads(plan);
  const auto bytes = build(plan);
  const auto view = ManifestView::open(bytes);
  ASSERT_TRUE(view);
  ASSERT_EQ(view->file_count(), plan.images.size());
  for (std::size_t row = 0; row < plan.images.size(); ++row) {
    const auto file = view->file(row);
    ASSERT_TRUE(file) << row;
    EXPECT_EQ(file->name, plan.images[row].name);
    EXPECT_EQ(file->kind, plan.images[row].kind);
    EXPECT_EQ(file->nbytes, plan.images[row].nbytes);
    EXPECT_EQ(file->mtime_ns, plan.images[row].mtime_ns);
    EXPECT_EQ(file->tensors, plan.images[row].tensors.size());
    EXPECT_EQ(file->digest, digests[row].file);
    EXPECT_EQ(view->find_file(file->name), row);
  }
  EXPECT_FALSE(view->file(plan.images.size()));
  EXPECT_FALSE(view->find_file("config"));
  EXPECT_FALSE(view->find_file(""));
}

TEST(Manifest, TensorsAreSortedAndFoundByName) {
  const EntryPlan plan = sample_plan();
  const auto bytes = build(plan);
  const auto view = ManifestView::open(bytes);
  ASSERT_TRUE(view);
  std::vector<std::string> names;
  for (std::size_t row = 0; row < view->tensor_count(); ++row) names.emplace_back(view->tensor(row)->name);
  EXPECT_THAT(names, ElementsAre("a.nothing", "b.weight", "m.scalar", "z.weight"));

  const auto z = view->tensor(view->find_tensor("z.weight").value());
  ASSERT_TRUE(z);
  EXPECT_EQ(z->dtype, "BF16");
  EXPECT_THAT(z->shape, ElementsAre(1u, 2u));
  EXPECT_EQ(view->file(z->file)->name, "model-00001.safetensors");
  EXPECT_EQ(z->offset, 8u);
  EXPECT_EQ(z->nbytes, 4u);
  EXPECT_EQ(z->slab, z->file);
  EXPECT_EQ(z->slab_offset, z->offset);
  EXPECT_EQ(z->digest, segment_digest(std::as_bytes(std::span("aaaa", 4))));

  EXPECT_TRUE(view->tensor(view->find_tensor("m.scalar").value())->shape.empty());
  const auto nothing = view->tensor(view->find_tensor("a.nothing").value());
  ASSERT_TRUE(nothing);
  EXPECT_THAT(nothing->shape, ElementsAre(0u, 7u));
  EXPECT_EQ(nothing->digest, segment_digest({}));
  EXPECT_FALSE(view->tensor(4));
  EXPECT_FALSE(view->find_tensor("c"));
  EXPECT_FALSE(view->find_tensor("zz"));
}

TEST(Manifest, OnADeviceTensorsHaveTheirPlacesInSlabs) {
  const OnDevice made(sample_plan());
  const auto view = ManifestView::open(made.bytes);
  ASSERT_TRUE(view) << view.error().message;
  EXPECT_EQ(view->placement().tier, "cuda");
  ASSERT_EQ(view->slab_count(), 5u) << "one for each segment";
  for (std::size_t slab = 0; slab < 5; ++slab) EXPECT_EQ(view->slab_nbytes(slab), kSlabAlignment);
  EXPECT_EQ(view->slab_nbytes(5), 0u);
  for (std::size_t row = 0; row < view->file_count(); ++row)
    EXPECT_EQ(view->on_device(*view->file(row)), is_weights(view->file(row)->kind));

  const auto slab_of = [&](std::string_view name) { return view->tensor(*view->find_tensor(name))->slab; };
  EXPECT_EQ(slab_of("z.weight"), 1u);
  EXPECT_EQ(slab_of("b.weight"), 2u);
  EXPECT_EQ(slab_of("m.scalar"), 4u);
  const auto nothing = view->tensor(*view->find_tensor("a.nothing"));
  ASSERT_TRUE(nothing) << "an empty tensor is somewhere as well";
  EXPECT_EQ(nothing->slab, 0u);
  EXPECT_EQ(nothing->slab_offset, 0u);
  EXPECT_EQ(view->fingerprint(), ManifestView::open(build(made.plan))->fingerprint())
      << "where the bytes are is not part of the key";
}

TEST(Manifest, InHostMemoryThereAreNoSlabs) {
  const auto bytes = build(sample_plan());
  const auto view = ManifestView::open(bytes);
  ASSERT_TRUE(view);
  EXPECT_EQ(view->slab_count(), 0u);
  EXPECT_EQ(view->slab_nbytes(0), 0u);
  for (std::size_t row = 0; row < view->file_count(); ++row) EXPECT_FALSE(view->on_device(*view->file(row)));
}

TEST(Manifest, ATensorBeyondItsSlabIsNone) {
  OnDevice made(wide_plan(3));
  made.slabs.images[0][1].slab = 7;                     // none such
  made.slabs.images[0][2].offset = kSlabAlignment - 1;  // its second byte is beyond the end
  const auto digests = digests_of_heads(made.plan);
  const auto bytes = build_manifest(made.plan, digests, {}, Placement{"cuda", "GPU-1", "cuda-vmm"},
                                    std::nullopt, &made.slabs)
                         .value();
  const auto view = ManifestView::open(bytes);
  ASSERT_TRUE(view);
  EXPECT_TRUE(view->tensor(0));
  EXPECT_FALSE(view->tensor(1));
  EXPECT_FALSE(view->tensor(2));
}

TEST(Manifest, EmptyEntryHasEmptyTables) {
  const auto bytes = build(EntryPlan{});
  const auto view = ManifestView::open(bytes);
  ASSERT_TRUE(view);
  EXPECT_EQ(view->file_count(), 0u);
  EXPECT_EQ(view->tensor_count(), 0u);
  EXPECT_FALSE(view->file(0));
  EXPECT_FALSE(view->find_tensor("a"));
}

TEST(Manifest, ManyTensorsAreAllFound) {
  const EntryPlan plan = wide_plan(20'000);
  const auto bytes = build(plan);
  const auto view = ManifestView::open(bytes);
  ASSERT_TRUE(view);
  for (const TensorInfo& tensor : plan.images[0].tensors) {
    const auto row = view->find_tensor(tensor.name);
    ASSERT_TRUE(row) << tensor.name;
    ASSERT_EQ(view->tensor(*row)->offset, tensor.offset);
  }
}

TEST(Manifest, OpeningDoesNotWalkTheTables) {
  using Clock = std::chrono::steady_clock;
  const auto best_of = [](std::span<const std::byte> bytes) {
    Clock::duration best = Clock::duration::max();
    for (int i = 0; i < 200; ++i) {
      const auto begin = Clock::now();
      EXPECT_TRUE(ManifestView::open(bytes));
      best = std::min(best, Clock::now() - begin);
    }
    return best;
  };
  const auto small = build(wide_plan(10));
  const auto large = build(wide_plan(150'000));
  // 15,000 times the rows; a walk would show as a factor of thousands.
  EXPECT_LT(best_of(large), best_of(small) * 50 + std::chrono::microseconds(20));
}

TEST(Manifest, RefusesWhatDoesNotBelongTogether) {
  const EntryPlan plan = sample_plan();
  auto digests = digests_of_heads(plan);
  const Fingerprint key = key_of(plan, digests).fingerprint();
  const auto reason = [&](const EntryPlan& p, const std::vector<ImageDigests>& d) {
    const auto built = build_manifest(p, d, key, {});
    return built ? "built" : std::string(to_string(built.error().reason)) + ": " + built.error().message;
  };
  auto fewer = digests;
  fewer.pop_back();
  EXPECT_THAT(reason(plan, fewer), HasSubstr("internal"));
  auto missing = digests;
  missing[2].segments.pop_back();
  EXPECT_THAT(reason(plan, missing), HasSubstr("model-00001.safetensors"));
  EntryPlan unsorted = plan;
  std::swap(unsorted.images[0], unsorted.images[1]);
  std::swap(digests[0], digests[1]);
  EXPECT_THAT(reason(unsorted, digests), HasSubstr("not sorted"));
  EntryPlan astray = plan;
  astray.images[2].tensors[0].offset = 9;
  EXPECT_THAT(reason(astray, digests_of_heads(astray)), HasSubstr("z.weight"));
}

TEST(Manifest, RefusesMoreDimensionsThanTheFormatHolds) {
  EntryPlan plan = sample_plan();
  plan.images[2].tensors[0].shape.assign(70'000, 1);
  const auto built = build_manifest(plan, digests_of_heads(plan), {}, {});
  ASSERT_FALSE(built);
  EXPECT_EQ(built.error().reason, Reason::unsupported);
  EXPECT_THAT(built.error().message, HasSubstr("z.weight"));
}

TEST(Manifest, RefusesBytesThatAreNone) {
  const auto reason = [](std::span<const std::byte> bytes) {
    return ManifestView::open(bytes).error().reason;
  };
  EXPECT_EQ(reason({}), Reason::corrupt);
  alignas(8) const std::byte zeros[64] = {};
  EXPECT_EQ(reason(zeros), Reason::corrupt);
  auto bytes = build(sample_plan());
  EXPECT_EQ(reason(std::span(bytes).first(bytes.size() / 2)), Reason::corrupt);
  bytes.insert(bytes.begin(), std::byte{0});
  EXPECT_EQ(reason(std::span(bytes).subspan(1)), Reason::corrupt) << "misaligned";
}

/// Uses every accessor, so that a read out of bounds meets the address sanitizer.
std::uint64_t touch_everything(const ManifestView& view) {
  std::uint64_t sum = view.nbytes() + view.rank() + view.tp_size() + view.fingerprint().digest.low;
  const auto add = [&](std::string_view text) { sum = std::accumulate(text.begin(), text.end(), sum); };
  for (std::string_view text : {view.role(), view.layout(), view.name(), view.source(), view.architecture(),
                                view.dtype(), view.quantization()})
    add(text);
  add(view.placement().device_uuid);
  for (const LeftOut& left_out : view.left_out()) add(left_out.why);
  for (std::size_t row = 0; row < view.file_count() && row < 1000; ++row) {
    const auto file = view.file(row);
    if (!file) continue;
    add(file->name);
    sum += view.find_file(file->name).value_or(0) + (view.on_device(*file) ? 1 : 0);
  }
  for (std::size_t slab = 0; slab < view.slab_count() && slab < 1000; ++slab) sum += view.slab_nbytes(slab);
  for (std::size_t row = 0; row < view.tensor_count() && row < 1000; ++row) {
    const auto tensor = view.tensor(row);
    if (!tensor) continue;
    add(tensor->name);
    add(tensor->dtype);
    sum = std::accumulate(tensor->shape.begin(), tensor->shape.end(), sum);
    sum += view.find_tensor(tensor->name).value_or(0);
    EXPECT_LE(tensor->offset + tensor->nbytes, view.file(tensor->file)->nbytes);
  }
  return sum;
}

TEST(Manifest, RandomDamageNeverReadsOutOfBounds) {
  const std::array good{build(sample_plan()), OnDevice(sample_plan()).bytes};
  std::mt19937 random(20240607);
  int opened = 0;
  for (int round = 0; round < 20'000; ++round) {
    // An allocation of exactly the size, so that one byte too far is seen.
    std::vector<std::byte> bytes(good[random() % good.size()]);
    const std::size_t flips = 1 + random() % 4;
    for (std::size_t i = 0; i < flips; ++i) {
      std::byte& at = bytes[random() % bytes.size()];
      at =
          round % 2 == 0 ? static_cast<std::byte>(random()) : at ^ static_cast<std::byte>(1u << random() % 8);
    }
    if (round % 16 == 0) bytes.resize(random() % bytes.size());
    bytes.shrink_to_fit();
    const auto view = ManifestView::open(bytes);
    if (!view) continue;
    ++opened;
    touch_everything(*view);
  }
  EXPECT_GT(opened, 1000) << "the damage never reached the accessors";
}

TEST(Manifest, RowsThatPointOutsideAreNoRows) {
  const EntryPlan plan = sample_plan();
  const auto good = build(plan);
  // A tensor's length, found by its digest in front of it, made larger than its file.
  const Digest digest = segment_digest(std::as_bytes(std::span("bbbbbbbb", 8)));
  const auto pattern = std::as_bytes(std::span(&digest, 1));
  const auto row = std::search(good.begin(), good.end(), pattern.begin(), pattern.end());
  ASSERT_NE(row, good.end());
  auto bad = good;
  const std::uint64_t too_long = 9;
  std::memcpy(bad.data() + (row - good.begin()) + sizeof(Digest), &too_long, sizeof too_long);
  const auto view = ManifestView::open(bad);
  ASSERT_TRUE(view);
  EXPECT_FALSE(view->tensor(view->find_tensor("b.weight").value()));
  EXPECT_TRUE(view->tensor(view->find_tensor("z.weight").value()));
}

TEST(Manifest, ARankOfAGroupCarriesTheKeyOfAll) {
  const EntryPlan plan = sample_plan();
  const auto digests = digests_of_heads(plan);
  GroupPlace place{3, key_of(plan, digests)};
  const Key::File other{"model-rank-1-part-0.safetensors", 7, digest_of("elsewhere")};
  place.key.files.push_back(other);
  const auto bytes = build_manifest(plan, digests, place.key.fingerprint(), {}, place).value();
  const auto view = ManifestView::open(bytes);
  ASSERT_TRUE(view) << view.error().message;
  EXPECT_EQ(view->node_ranks(), 3u);
  EXPECT_EQ(view->others(), std::vector<Key::File>{other});
  EXPECT_EQ(view->file_count(), plan.images.size());

  const auto alone = build(plan);
  EXPECT_EQ(ManifestView::open(alone)->node_ranks(), 1u);
  EXPECT_TRUE(ManifestView::open(alone)->others().empty());
}

}  // namespace
}  // namespace wcache

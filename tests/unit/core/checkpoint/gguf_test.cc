#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <ostream>
#include <random>

#include "core/checkpoint/checkpoint.h"
#include "core/checkpoint/ggml_types.h"
#include "tests/unit/core/checkpoint/support.h"

namespace wcache {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::little_endian;

constexpr std::uint32_t kUint32 = 4, kString = 8, kArray = 9;

std::string u32(std::uint64_t value) {
  return little_endian(value, 4);
}
std::string u64(std::uint64_t value) {
  return little_endian(value, 8);
}
std::string str(std::string_view text) {
  return u64(text.size()) + std::string(text);
}
std::string key(std::string_view name, std::uint32_t type, std::string_view value) {
  return str(name) + u32(type) + std::string(value);
}
std::string alignment(std::uint32_t value) {
  return key("general.alignment", kUint32, u32(value));
}

/// The parts of a GGUF file, each of which a test may break.
struct Gguf {
  std::string magic = "GGUF";
  std::uint32_t version = 3;
  std::vector<std::string> keys;
  std::vector<std::string> tensors;
  std::uint64_t more_keys = 0, more_tensors = 0;  ///< claimed, not there
  std::size_t align = 32;
  std::string data;

  std::string bytes() const {
    std::string out =
        magic + u32(version) + u64(tensors.size() + more_tensors) + u64(keys.size() + more_keys);
    for (const std::string& part : keys) out += part;
    for (const std::string& part : tensors) out += part;
    while (out.size() % align != 0) out += '\0';
    return out + data;
  }
};

/// `shape` in ggml's order, innermost first.
std::string tensor(std::string_view name, std::vector<std::uint64_t> shape, std::uint32_t type,
                   std::uint64_t offset) {
  std::string out = str(name) + u32(shape.size());
  for (const std::uint64_t extent : shape) out += u64(extent);
  return out + u32(type) + u64(offset);
}

Gguf good() {
  Gguf file;
  file.keys = {
      key("general.architecture", kString, str("llama")), key("llama.rope.freq", 6, u32(0x3f800000)),
      key("tokenizer.tokens", kArray, u32(kString) + u64(2) + str("a") + str("bc")),
      key("nested", kArray, u32(kArray) + u64(2) + u32(0) + u64(3) + "xyz" + u32(12) + u64(1) + u64(7))};
  file.tensors = {tensor("token_embd.weight", {8}, 0, 0), tensor("blk.0.weight", {32, 2}, 3, 32)};
  file.data = std::string(32 + 40, 'x') + std::string(24, '\0');
  return file;
}

Result<GgufHeader> header_of(std::string_view bytes) {
  const Fd fd = testing::memory_file(bytes);
  return read_gguf_header(fd.get(), bytes.size(), "model.gguf");
}

TEST(Gguf, TensorsComeOutermostFirstAndInPlace) {
  for (const std::uint32_t version : {2u, 3u}) {
    Gguf file = good();
    file.version = version;
    const std::string bytes = file.bytes();
    const std::uint64_t data = bytes.size() - file.data.size();
    const auto header = header_of(bytes);
    ASSERT_TRUE(header) << header.error().message;
    EXPECT_EQ(header->architecture, "llama");
    EXPECT_THAT(header->tensors, ElementsAre(TensorInfo{"token_embd.weight", "f32", {8}, data, 32},
                                             TensorInfo{"blk.0.weight", "q4_1", {2, 32}, data + 32, 40}));
  }
}

TEST(Gguf, AlignmentMovesTheData) {
  Gguf file = good();
  file.keys.push_back(alignment(1024));
  file.align = 1024;
  file.tensors = {tensor("a", {8}, 0, 1024), tensor("empty", {0}, 0, 0), tensor("b", {8}, 0, 0)};
  file.data = std::string(1024 + 32, 'x');
  const auto header = header_of(file.bytes());
  ASSERT_TRUE(header) << header.error().message;
  EXPECT_THAT(header->tensors,
              ElementsAre(TensorInfo{"empty", "f32", {0}, 1024, 0}, TensorInfo{"b", "f32", {8}, 1024, 32},
                          TensorInfo{"a", "f32", {8}, 2048, 32}));
}

TEST(Gguf, NoTensorsAndNoData) {
  Gguf file;
  file.align = 1;
  const auto header = header_of(file.bytes());
  ASSERT_TRUE(header) << header.error().message;
  EXPECT_TRUE(header->tensors.empty());
}

TEST(Gguf, TypesHaveGgmlsNamesAndSizes) {
  EXPECT_EQ(ggml_type(30)->name, "bf16");
  EXPECT_EQ(ggml_type(14)->name, "q6_K");
  EXPECT_EQ(ggml_type(39)->nbytes, 17u);
  EXPECT_FALSE(ggml_type(4));  // removed
  EXPECT_FALSE(ggml_type(1000));
}

struct Case {
  std::string name;
  std::function<std::string()> bytes;
  std::string check;
  std::string mentions = {};
  Reason reason = Reason::corrupt;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}

/// A good file, changed.
std::function<std::string()> with(std::function<void(Gguf&)> change) {
  return [change] {
    Gguf file = good();
    change(file);
    return file.bytes();
  };
}

std::function<std::string()> with_tensor(const std::string& bytes) {
  return with([bytes](Gguf& file) { file.tensors.push_back(bytes); });
}

std::function<std::string()> with_key(const std::string& bytes) {
  return with([bytes](Gguf& file) { file.keys.push_back(bytes); });
}

std::vector<Case> cases() {
  const std::uint64_t huge = UINT64_MAX;
  std::string deep;
  for (int i = 0; i < 100; ++i) deep += u32(kArray) + u64(1);
  return {
      {"empty", [] { return std::string(); }, "Truncated", "magic"},
      {"magic", with([](Gguf& file) { file.magic = "GGML"; }), "Magic"},
      {"git_lfs_pointer", [] { return std::string("version https://git-lfs.github.com/spec/v1\n"); }, "Magic",
       "Git-LFS"},
      {"html_page", [] { return std::string("<!doctype html>"); }, "Magic", "HTML page"},
      {"version_1", with([](Gguf& file) { file.version = 1; }), "", "GGUF version 1", Reason::unsupported},
      {"version_99", with([](Gguf& file) { file.version = 99; }), "", "GGUF version 99", Reason::unsupported},
      {"big_endian", with([](Gguf& file) { file.version = 3u << 24; }), "", "big-endian",
       Reason::unsupported},
      {"cut_off_in_the_counts", [] { return good().bytes().substr(0, 20); }, "Truncated", "number of keys"},
      {"cut_off_in_the_keys", with([](Gguf& file) { file.more_keys = 3; }), "", ""},
      {"cut_off_in_a_string", [] { return good().bytes().substr(0, 60); }, "", ""},
      {"key_count_huge", with([](Gguf& file) { file.more_keys = huge - 10; }), "Count", "keys"},
      {"tensor_count_huge", with([](Gguf& file) { file.more_tensors = huge - 10; }), "Count", "tensors"},
      {"tensor_count_too_large", with([](Gguf& file) { file.more_tensors = 1; }), "", ""},
      {"key_length_huge", with_key(u64(huge) + u32(0)), "Truncated", "key's name"},
      {"key_length_long",
       with([](Gguf& file) { file.keys.push_back(str(std::string(70'000, 'k')) + u32(0) + "x"); }),
       "StringTooLong", "70000"},
      {"key_twice", with_key(key("nested", 0, "x")), "DuplicateKey", "'nested'"},
      {"key_type", with_key(key("k", 13, "x")), "KeyType", "13"},
      {"string_value_huge", with_key(key("k", kString, u64(huge))), "Truncated", "metadata string"},
      {"array_count_huge", with_key(key("k", kArray, u32(10) + u64(huge))), "Count", "metadata array"},
      {"array_size_overflows", with_key(key("k", kArray, u32(10) + u64(huge / 8 + 2))), "Count",
       "metadata array"},
      {"array_type", with_key(key("k", kArray, u32(99) + u64(1) + std::string(16, 'x'))), "KeyType", "99"},
      {"array_too_deep", with_key(key("k", kArray, deep)), "Nesting"},
      {"alignment_zero", with_key(alignment(0)), "Alignment", "is 0"},
      {"alignment_48", with_key(alignment(48)), "Alignment", "is 48"},
      {"alignment_type", with_key(key("general.alignment", 10, u64(32))), "Alignment"},
      {"dimensions_5", with_tensor(tensor("c", {1, 1, 1, 1, 1}, 0, 96)), "Dimensions", "'c' has 5"},
      {"dimensions_huge", with_tensor(str("c") + u32(0x80000000)), "Dimensions", "'c'"},
      {"extent_negative", with_tensor(tensor("c", {huge}, 0, 0)), "TensorOverflow", "'c'"},
      {"shape_overflows", with_tensor(tensor("c", {1ull << 32, 1ull << 32}, 0, 0)), "TensorOverflow", "'c'"},
      {"bytes_overflow", with_tensor(tensor("c", {1ull << 62}, 0, 0)), "TensorOverflow", "'c'"},
      {"rows_not_whole_blocks", with_tensor(tensor("c", {16, 2}, 3, 0)), "TensorBlocks", "q4_1"},
      {"scalar_of_blocks", with_tensor(tensor("c", {}, 3, 0)), "TensorBlocks", "'c'"},
      {"type_unknown", with_tensor(tensor("c", {8}, 999, 0)), "", "ggml type 999", Reason::unsupported},
      {"type_removed", with_tensor(tensor("c", {32}, 4, 0)), "", "ggml type 4", Reason::unsupported},
      {"name_twice", with_tensor(tensor("blk.0.weight", {8}, 0, 96)), "DuplicateTensor", "'blk.0.weight'"},
      {"offset_misaligned", with_tensor(tensor("c", {1}, 0, 33)), "TensorOffset", "33"},
      {"offset_beyond_end", with_tensor(tensor("c", {1}, 0, 1ull << 40)), "TensorBounds", "'c'"},
      {"offset_wraps_around", with_tensor(tensor("c", {1}, 0, huge - 31)), "TensorBounds", "'c'"},
      {"size_beyond_end", with_tensor(tensor("c", {1 << 20}, 0, 64)), "TensorBounds", "'c'"},
      {"data_cut_off", with([](Gguf& file) { file.data.resize(71); }), "TensorBounds", "'blk.0.weight'"},
      {"overlap", with_tensor(tensor("c", {8}, 0, 64)), "TensorOverlap", "'c'"},
      {"same_place", with_tensor(tensor("c", {8}, 0, 0)), "TensorOverlap", ""},
  };
}

class GgufCase : public ::testing::TestWithParam<Case> {};

TEST_P(GgufCase, IsRefused) {
  const Case& c = GetParam();
  const Result<GgufHeader> header = header_of(c.bytes());
  ASSERT_FALSE(header);
  EXPECT_EQ(header.error().reason, c.reason);
  EXPECT_THAT(header.error().message,
              AllOf(HasSubstr(c.check), HasSubstr("model.gguf"), HasSubstr(c.mentions)));
}

INSTANTIATE_TEST_SUITE_P(All, GgufCase, ::testing::ValuesIn(cases()),
                         [](const auto& row) { return row.param.name; });

TEST(Gguf, RandomMutationsNeverCrash) {
  std::mt19937 random(20240818);
  const std::string whole = good().bytes();
  const auto below = [&random](std::size_t n) {
    return std::uniform_int_distribution<std::size_t>(0, n - 1)(random);
  };
  int accepted = 0;
  for (int round = 0; round < 4000; ++round) {
    std::string bytes = whole;
    for (std::size_t edits = 1 + below(3); edits > 0 && !bytes.empty(); --edits) {
      const std::size_t at = below(bytes.size());
      switch (below(4)) {
        case 0:
          bytes[at] = static_cast<char>(below(256));
          break;
        case 1:
          bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
          break;
        case 2:
          bytes.erase(at, 1 + below(8));
          break;
        case 3:
          bytes.resize(at);
          break;
      }
    }
    const auto header = header_of(bytes);
    if (!header) continue;
    ++accepted;
    std::uint64_t at = 0;
    for (const Segment& segment : segments_of(bytes.size(), header->tensors)) {
      EXPECT_EQ(segment.offset, at);
      at += segment.nbytes;
    }
    EXPECT_EQ(at, bytes.size());
  }
  EXPECT_GT(accepted, 0);
}

}  // namespace
}  // namespace wcache

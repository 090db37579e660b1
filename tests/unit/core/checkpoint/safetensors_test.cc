#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <ostream>
#include <random>

#include "core/checkpoint/checkpoint.h"
#include "tests/unit/core/checkpoint/support.h"

namespace wcache {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::entry;
using ::testing::HasSubstr;
using testing::little_endian;
using testing::safetensors;
using ::testing::StartsWith;

Result<std::vector<TensorInfo>> header_of(std::string_view bytes) {
  const Fd fd = testing::memory_file(bytes);
  return read_safetensors_header(fd.get(), bytes.size(), "model.safetensors");
}

struct Case {
  std::string name;
  std::string bytes;
  std::string check;     ///< the library's name of what must fail; empty: accepted
  std::string mentions;  ///< must be in the message
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}

std::string one(std::string_view dtype, std::string_view shape, std::string_view offsets, std::size_t data) {
  return safetensors("{\"a\":" + entry(dtype, shape, offsets) + "}", std::string(data, 'x'));
}

std::string text(std::string_view header, std::size_t data = 4) {
  return safetensors(header, std::string(data, 'x'));
}

const std::string kGood = entry("U8", "[4]", "[0,4]");

std::vector<Case> cases() {
  const std::string json = "InvalidHeaderDeserialization";
  const std::string far = "18446744073709551615";
  std::string ten = "{";
  for (int i = 0; i < 10; ++i) ten += (i > 0 ? ",\"t" : "\"t") + std::to_string(i) + "\":" + kGood;
  return {
      {"empty", "", "HeaderTooSmall", "0 bytes"},
      {"seven_bytes", std::string(7, '\0'), "HeaderTooSmall", "7 bytes"},
      {"length_all_ones", std::string(8, '\xff'), "HeaderTooLarge", far},
      {"length_over_limit", little_endian(100'000'001), "HeaderTooLarge", "100000001"},
      {"length_at_limit", little_endian(100'000'000) + "{}", "InvalidHeaderLength", "the file has 10"},
      {"length_without_body", little_endian(2), "InvalidHeaderLength", "2 bytes"},
      {"length_zero", little_endian(0), json, "not JSON"},
      {"git_lfs_pointer", "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n",
       "HeaderTooLarge", "Git-LFS pointer"},
      {"html_page", "\n<!DOCTYPE HTML><html></html>", "HeaderTooLarge", "HTML page"},
      {"html_stub", "<html>", "HeaderTooSmall", "HTML page"},
      {"xml_page", "<?xml version=\"1.0\"?><Error/>", "HeaderTooLarge", "XML page"},
      {"not_utf8", safetensors("\xff"), "InvalidHeader", "UTF-8"},
      {"name_not_utf8", text("{\"\xc3(\":" + kGood + "}"), "InvalidHeader", "UTF-8"},
      {"lone_brace", safetensors("{"), json, "not JSON"},
      {"byte_order_mark", safetensors("\xef\xbb\xbf{}"), json, "byte order mark"},
      {"array", safetensors("[]"), json, "not a JSON object"},
      {"number", safetensors("12"), json, "not a JSON object"},
      {"text_after", safetensors("{} x"), json, "not JSON"},
      {"nul_padding", safetensors(std::string("{}\0\0\0\0\0\0", 8)), json, "not JSON"},
      {"metadata_after_the_end", safetensors(R"({},"__metadata__":{"format":"pt"}})"), json, "not JSON"},
      {"trailing_comma", text("{\"a\":" + kGood + ",}"), json, "not JSON"},
      {"deep_nesting", safetensors("{\"a\":" + std::string(100'000, '[') + std::string(100'000, ']') + "}"),
       json, ""},
      {"lone_surrogate", text("{\"\\ud800\":" + kGood + "}"), json, "not JSON"},
      {"entry_null", safetensors(R"({"a":null})"), json, "'a'"},
      {"entry_array", text(R"({"a":["U8",[4],[0,4]]})"), json, "'a'"},
      {"dtype_unknown", one("F7", "[4]", "[0,4]", 4), json, "unknown dtype 'F7'"},
      {"dtype_lower_case", one("u8", "[4]", "[0,4]", 4), json, "unknown dtype 'u8'"},
      {"dtype_number", text(R"({"a":{"dtype":8,"shape":[4],"data_offsets":[0,4]}})"), json,
       "dtype is not a string"},
      {"dtype_missing", text(R"({"a":{"shape":[4],"data_offsets":[0,4]}})"), json, "dtype is missing"},
      {"dtype_twice", text(R"({"a":{"dtype":"U8","dtype":"U8","shape":[4],"data_offsets":[0,4]}})"), json,
       "dtype is there"},
      {"shape_missing", text(R"({"a":{"dtype":"U8","data_offsets":[0,4]}})"), json, "shape is missing"},
      {"shape_number", one("U8", "4", "[0,4]", 4), json, "shape is not an array"},
      {"shape_negative", one("U8", "[-4]", "[0,4]", 4), json, "shape holds"},
      {"shape_fraction", one("U8", "[4.0]", "[0,4]", 4), json, "shape holds"},
      {"shape_exponent", one("U8", "[4e0]", "[0,4]", 4), json, "shape holds"},
      {"shape_string", one("U8", "[\"4\"]", "[0,4]", 4), json, "shape holds"},
      {"shape_65_bits", one("U8", "[18446744073709551616]", "[0,4]", 4), json, ""},
      {"offsets_missing", text(R"({"a":{"dtype":"U8","shape":[4]}})"), json, "data_offsets is missing"},
      {"offsets_object", one("U8", "[4]", "{}", 4), json, "data_offsets is not an array"},
      {"offsets_none", one("U8", "[4]", "[]", 4), json, "fewer than two"},
      {"offsets_one", one("U8", "[4]", "[0]", 4), json, "fewer than two"},
      {"offsets_three", one("U8", "[4]", "[0,4,4]", 4), json, "more than two"},
      {"offsets_negative", one("U8", "[4]", "[-4,0]", 4), json, "data_offsets holds"},
      {"offsets_fraction", one("U8", "[4]", "[0,4.0]", 4), json, "data_offsets holds"},
      {"hole_at_start", one("U8", "[4]", "[4,8]", 8), "InvalidOffset", "'a' has data_offsets [4, 8)"},
      {"hole_between", text("{\"a\":" + kGood + ",\"b\":" + entry("U8", "[4]", "[5,9]") + "}", 9),
       "InvalidOffset", "'b'"},
      {"overlap", text("{\"a\":" + kGood + ",\"b\":" + entry("U8", "[4]", "[3,7]") + "}", 7), "InvalidOffset",
       "'b'"},
      {"backwards", text("{\"a\":" + kGood + ",\"b\":" + entry("U8", "[0]", "[4,3]") + "}"), "InvalidOffset",
       "'b'"},
      {"ten_on_one_range", text(ten + "}"), "InvalidOffset", "'t1'"},
      {"shape_overflows", one("U8", "[2,18446744073709551614]", "[0,4]", 4), "ValidationOverflow", "'a'"},
      {"bits_overflow", one("I32", "[2,9223372036854775807]", "[0,4]", 4), "ValidationOverflow", "'a'"},
      {"overflow_before_zero", one("U8", "[9223372036854775808,2,0]", "[0,0]", 0), "ValidationOverflow",
       "'a'"},
      {"f4_half_byte", one("F4", "[1,3]", "[0,2]", 2), "MisalignedSlice", "12 bits of F4"},
      {"f6_half_byte", one("F6_E3M2", "[3]", "[0,3]", 3), "MisalignedSlice", "18 bits of F6_E3M2"},
      {"f4_wrong_size", one("F4", "[2,2]", "[0,4]", 4), "TensorInvalidInfo", "give 2 bytes"},
      {"size_too_small", one("I32", "[2,2]", "[0,4]", 4), "TensorInvalidInfo",
       "give 16 bytes, data_offsets give 4"},
      {"empty_shape_with_bytes", one("U8", "[0,4]", "[0,4]", 4), "TensorInvalidInfo", "give 0 bytes"},
      {"offsets_huge", one("U8", "[18446744073709551615]", "[0," + far + "]", 4), "ValidationOverflow",
       "'a'"},
      {"beyond_the_end", one("U8", "[1099511627776]", "[0,1099511627776]", 4), "MetadataIncompleteBuffer",
       "1099511627776"},
      {"two_bytes_missing", one("U8", "[4]", "[0,4]", 2), "MetadataIncompleteBuffer",
       "4 bytes of data, the file holds 2"},
      {"two_bytes_more", one("U8", "[4]", "[0,4]", 6), "MetadataIncompleteBuffer",
       "4 bytes of data, the file holds 6"},
      {"no_tensors_and_a_byte", safetensors("{}", "x"), "MetadataIncompleteBuffer", "0 bytes of data"},
      {"metadata_number", text("{\"__metadata__\":{\"n\":1},\"a\":" + kGood + "}"), json,
       "__metadata__ 'n' is not"},
      {"metadata_nested", text("{\"__metadata__\":{\"n\":{}},\"a\":" + kGood + "}"), json,
       "__metadata__ 'n' is not"},
      {"metadata_null_value", text("{\"__metadata__\":{\"n\":null},\"a\":" + kGood + "}"), json,
       "__metadata__ 'n' is not"},
      {"metadata_string", text("{\"__metadata__\":\"pt\",\"a\":" + kGood + "}"), json,
       "__metadata__ is not an object"},
      {"metadata_twice", text(R"({"__metadata__":{},"__metadata__":{},"a":)" + kGood + "}"), json,
       "__metadata__ is there twice"},
      {"metadata_is_a_tensor", text("{\"__metadata__\":" + kGood + "}"), json, "__metadata__ 'shape' is not"},
      {"name_twice", text("{\"a\":" + kGood + ",\"a\":" + kGood + "}"), json, "'a': the name is there twice"},
      {"name_twice_spelled_differently",
       text("{\"a\":" + kGood + ",\"\\u0061\":" + entry("U8", "[4]", "[4,8]") + "}", 8), json,
       "'a': the name"},
      {"name_cannot_write_to_a_terminal", text("{\"\\u001b[2J\\n\":{}}"), json, "'?[2J?'"},

      {"ok_no_tensors", safetensors("{}      "), "", ""},
      {"ok_whitespace_around", text(" \t\r\n{\"a\":" + kGood + "}\n\t "), "", ""},
      {"ok_metadata", text(R"({"__metadata__":{"format":"pt"},"a":)" + kGood + "}"), "", ""},
      {"ok_metadata_empty", text("{\"__metadata__\":{},\"a\":" + kGood + "}"), "", ""},
      {"ok_metadata_null", text("{\"__metadata__\":null,\"a\":" + kGood + "}"), "", ""},
      {"ok_unknown_field",
       text(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4],"more":{"x":[1.5]}}})"), "", ""},
      {"ok_empty_tensor", one("I32", "[2,0]", "[0,0]", 0), "", ""},
      {"ok_scalar", one("F32", "[]", "[0,4]", 4), "", ""},
      {"ok_f4", one("F4", "[2,4]", "[0,4]", 4), "", ""},
      {"ok_f6", one("F6_E2M3", "[4]", "[0,3]", 3), "", ""},
  };
}

class SafetensorsCase : public ::testing::TestWithParam<Case> {};

TEST_P(SafetensorsCase, IsJudgedAsTheLibraryDoes) {
  const Case& c = GetParam();
  const Result<std::vector<TensorInfo>> header = header_of(c.bytes);
  if (c.check.empty()) {
    ASSERT_TRUE(header) << header.error().message;
    return;
  }
  ASSERT_FALSE(header);
  EXPECT_EQ(header.error().reason, Reason::corrupt);
  EXPECT_THAT(header.error().message,
              AllOf(StartsWith(c.check + ": model.safetensors"), HasSubstr(c.mentions)));
}

INSTANTIATE_TEST_SUITE_P(All, SafetensorsCase, ::testing::ValuesIn(cases()),
                         [](const auto& row) { return row.param.name; });

TEST(Safetensors, DisguisesSayWhatToDo) {
  EXPECT_THAT(header_of("version https://git-lfs.github.com/spec/v1\noid sha256:00\n").error().hint,
              HasSubstr("git lfs pull"));
  EXPECT_THAT(header_of("<html>403 Forbidden</html>").error().hint, HasSubstr("download"));
}

TEST(Safetensors, TensorsComeInOrderOfOffsetAndInPlace) {
  const std::string header = R"({"b":)" + entry("F32", "[1,2]", "[6,14]") +
                             R"(,"__metadata__":{"format":"pt"},"z":)" + entry("U8", "[0]", "[6,6]") +
                             R"(,"a\n\ud83d\ude00":)" + entry("BF16", "[3]", "[0,6]") + "}";
  const std::uint64_t data = 8 + header.size();
  const auto tensors = header_of(safetensors(header, std::string(14, 'x')));
  ASSERT_TRUE(tensors) << tensors.error().message;
  EXPECT_THAT(*tensors, ElementsAre(TensorInfo{"a\n\xf0\x9f\x98\x80", "BF16", {3}, data, 6},
                                    TensorInfo{"z", "U8", {0}, data + 6, 0},
                                    TensorInfo{"b", "F32", {1, 2}, data + 6, 8}));
}

TEST(Safetensors, EveryDtypeHasItsSize) {
  const std::vector<std::pair<std::string, std::uint64_t>> bytes_of_8{
      {"F4", 4},          {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"BOOL", 8}, {"U8", 8},          {"I8", 8},
      {"F8_E5M2", 8},     {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"I16", 16}, {"F8_E4M3FNUZ", 8}, {"U16", 16},
      {"F8_E5M2FNUZ", 8}, {"F16", 16},    {"BF16", 16},   {"I32", 32}, {"U32", 32},        {"F32", 32},
      {"C64", 64},        {"I64", 64},    {"U64", 64},    {"F64", 64},
  };
  for (const auto& [dtype, nbytes] : bytes_of_8) {
    const auto tensors = header_of(one(dtype, "[2,4]", "[0," + std::to_string(nbytes) + "]", nbytes));
    ASSERT_TRUE(tensors) << tensors.error().message;
    EXPECT_EQ(tensors->front().nbytes, nbytes) << dtype;
    EXPECT_FALSE(header_of(one(dtype, "[2,4]", "[0," + std::to_string(nbytes + 1) + "]", nbytes + 1)))
        << dtype;
  }
}

TEST(Safetensors, AFileThatShrinksIsAnIoError) {
  const Fd fd = testing::memory_file(little_endian(64) + "{}");
  const auto header = read_safetensors_header(fd.get(), 1000, "model.safetensors");
  ASSERT_FALSE(header);
  EXPECT_EQ(header.error().reason, Reason::io);
  EXPECT_THAT(header.error().message, HasSubstr("model.safetensors"));
}

TEST(Safetensors, TwoHundredThousandTensorsTakeWellUnderASecond) {
  std::string header = "{";
  constexpr int kCount = 200'000;
  for (int i = 0; i < kCount; ++i) {
    if (i > 0) header += ',';
    header += "\"model.layers." + std::to_string(i) + ".mlp.experts.down_proj.weight\":" +
              entry("U8", "[2]", "[" + std::to_string(2 * i) + "," + std::to_string(2 * i + 2) + "]");
  }
  const std::string bytes = safetensors(header + "}", std::string(2 * kCount, 'x'));
  const Fd fd = testing::memory_file(bytes);
  const auto start = std::chrono::steady_clock::now();
  const auto tensors = read_safetensors_header(fd.get(), bytes.size(), "model.safetensors");
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  ASSERT_TRUE(tensors) << tensors.error().message;
  EXPECT_EQ(tensors->size(), std::size_t{kCount});
  RecordProperty("milliseconds", static_cast<int>(took.count() * 1000));
  EXPECT_LT(took.count(), 10.0);  // 0.1 s in a release build; sanitizers and busy machines are slower
}

/// Whatever the bytes: an answer, and never one that points outside of the file.
TEST(Safetensors, RandomMutationsNeverCrash) {
  std::mt19937 random(20240817);
  const std::string header = R"({"__metadata__":{"format":"pt"},"a":)" + entry("F32", "[2,2]", "[0,16]") +
                             R"(,"b":)" + entry("F4", "[8]", "[16,20]") + R"(,"c":)" +
                             entry("I64", "[0,3]", "[20,20]") + "}";
  const std::string good = safetensors(header, std::string(20, 'x'));
  ASSERT_TRUE(header_of(good));
  const auto below = [&random](std::size_t n) {
    return std::uniform_int_distribution<std::size_t>(0, n - 1)(random);
  };
  constexpr std::string_view kTokens = "{}[]\":,0129-.eE\\ \n\x7f\xff\x00";
  int accepted = 0;
  for (int round = 0; round < 4000; ++round) {
    std::string bytes = good;
    for (std::size_t edits = 1 + below(3); edits > 0 && !bytes.empty(); --edits) {
      const std::size_t at = below(bytes.size());
      switch (below(5)) {
        case 0:
          bytes[at] = static_cast<char>(below(256));
          break;
        case 1:
          bytes[at] = kTokens[below(kTokens.size())];
          break;
        case 2:
          bytes.insert(at, 1, kTokens[below(kTokens.size())]);
          break;
        case 3:
          bytes.erase(at, 1 + below(4));
          break;
        case 4:
          bytes.resize(at);
          break;
      }
    }
    const auto tensors = header_of(bytes);
    if (!tensors) {
      EXPECT_FALSE(tensors.error().message.empty());
      continue;
    }
    ++accepted;
    std::uint64_t at = 0;
    for (const Segment& segment : segments_of(bytes.size(), *tensors)) {
      EXPECT_EQ(segment.offset, at);
      EXPECT_GT(segment.nbytes, 0u);
      at += segment.nbytes;
    }
    EXPECT_EQ(at, bytes.size());
  }
  EXPECT_GT(accepted, 0);  // edits of names and data leave a file valid
}

}  // namespace
}  // namespace wcache

#include "core/digest.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

namespace wcache {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

/// Bytes that no test vector shares: i * i + i / 256, modulo 256. tests/tools/recompute_key.py --self-test
/// has the same.
std::string ramp(std::size_t nbytes) {
  std::string bytes(nbytes, '\0');
  for (std::size_t i = 0; i < nbytes; ++i) bytes[i] = static_cast<char>((i * i + i / 256) & 0xff);
  return bytes;
}

TEST(Digest, IsXxh3WithTheCanonicalSpelling) {
  // printf '' | xxhsum -H2
  EXPECT_EQ(to_hex(digest_of("")), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(digest_from_hex("99aa06d3014798d86001c324468d497f"), digest_of(""));
}

TEST(Digest, OnlyExactHexParses) {
  for (std::string_view text : {"", "99aa06d3014798d86001c324468d497", "99aa06d3014798d86001c324468d497f0",
                                "99AA06d3014798d86001c324468d497f", "99aa06d3014798d86001c324468d497g"})
    EXPECT_FALSE(digest_from_hex(text)) << text;
  const Digest digest{1, 0xfedcba9876543210};
  EXPECT_EQ(to_hex(digest), "0000000000000001fedcba9876543210");
  EXPECT_EQ(digest_from_hex(to_hex(digest)), digest);
}

// The digest tree is a format: digests live in caches and directory names. The values were computed by
// `tests/tools/recompute_key.py --self-test`, which shares no code with us.
TEST(Digest, TreeKeepsItsValues) {
  EXPECT_EQ(to_hex(segment_digest({})), "2c0a8a99dc147d5445c3b49d035665b2");
  EXPECT_EQ(to_hex(segment_digest(bytes_of("abc"))), "00bb8f5bbcc6694e541b81f687d45e2f");
  EXPECT_EQ(to_hex(segment_digest(bytes_of(ramp(kHashBlock)))), "5be892f2ebe8c2ffae2dc385d1235e36");
  EXPECT_EQ(to_hex(segment_digest(bytes_of(ramp(2 * kHashBlock + 1)))), "9edb68d731dd3d4362a57578e6130afb");
  EXPECT_EQ(to_hex(file_digest({})), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(to_hex(file_digest(bytes_of("abc"))), "1cd09261a931e4add42a7f185a7ad55b");
  const std::vector<Segment> segments{{0, 10}, {10, kHashBlock + 3}, {kHashBlock + 13, 7}};
  EXPECT_EQ(to_hex(file_digest(bytes_of(ramp(kHashBlock + 20)), segments)),
            "ca5dd00d5f8b20f90f3502605f4f051d");
}

TEST(Digest, EveryByteLengthAndCutCounts) {
  const std::string bytes = ramp(kHashBlock + 20);
  const std::vector<Segment> segments{{0, 10}, {10, kHashBlock + 10}};
  const Digest digest = file_digest(bytes_of(bytes), segments);
  for (std::size_t at : {std::size_t{0}, std::size_t{9}, std::size_t{10}, std::size_t{kHashBlock + 9},
                         std::size_t{kHashBlock + 10}, std::size_t{kHashBlock + 19}}) {
    std::string other = bytes;
    other[at] = static_cast<char>(other[at] ^ 1);
    EXPECT_NE(file_digest(bytes_of(other), segments), digest) << at;
  }
  EXPECT_NE(file_digest(bytes_of(bytes)), digest);
  EXPECT_NE(file_digest(bytes_of(bytes), std::vector<Segment>{{0, 11}, {11, kHashBlock + 9}}), digest);
  const std::string zeros(5, '\0');
  EXPECT_NE(segment_digest(bytes_of(zeros)), segment_digest(bytes_of(zeros).first(4)));
}

TEST(Digest, BlockCountRoundsUp) {
  EXPECT_EQ(block_count(0), 0u);
  EXPECT_EQ(block_count(1), 1u);
  EXPECT_EQ(block_count(kHashBlock), 1u);
  EXPECT_EQ(block_count(kHashBlock + 1), 2u);
}

}  // namespace
}  // namespace wcache

#include "core/key.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace wcache {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Key sample() {
  Key key;
  key.role = Role::target;
  key.layout = Layout::checkpoint;
  key.files = {{"config.json", 2, digest_of("{}")}, {"model.safetensors", 0, digest_of("")}};
  return key;
}

// The text is a format: a change is a new version of the key.
TEST(Key, CanonicalTextIsExactlyThis) {
  EXPECT_EQ(sample().canonical(),
            "wcache-key 1\n"
            "role target\n"
            "layout checkpoint\n"
            "file " +
                to_hex(digest_of("{}")) +
                " 2 config.json\n"
                "file 99aa06d3014798d86001c324468d497f 0 model.safetensors\n");
  EXPECT_EQ(sample().fingerprint().digest, digest_of(sample().canonical()));
}

TEST(Key, EveryFieldCounts) {
  std::set<std::string> fingerprints{to_hex(sample().fingerprint())};
  const auto other = [&](auto change) {
    Key key = sample();
    change(key);
    EXPECT_TRUE(fingerprints.insert(to_hex(key.fingerprint())).second) << key.canonical();
  };
  other([](Key& key) { key.role = Role::draft0; });
  other([](Key& key) { key.layout = Layout::mtp; });
  other([](Key& key) { key.files[0].name = "Config.json"; });
  other([](Key& key) { key.files[0].nbytes = 3; });
  other([](Key& key) { key.files[0].digest.low ^= 1; });
  other([](Key& key) { key.files.pop_back(); });
  other([](Key& key) { key.layout = Layout::sharded; });
  other([](Key& key) {
    key.layout = Layout::sharded;
    key.tp_size = 2;
  });
}

TEST(Key, TensorParallelSizeCountsOnlyWhereRanksDiffer) {
  Key key = sample();
  key.tp_size = 8;
  EXPECT_EQ(key.fingerprint(), sample().fingerprint());
  EXPECT_THAT(key.canonical(), Not(HasSubstr("tp_size")));
  key.layout = Layout::sharded;
  EXPECT_THAT(key.canonical(), HasSubstr("tp_size 8\n"));
}

TEST(Key, NameCannotForgeALine) {
  Key one = sample();
  one.files[0].name = "a\nfile 0 1 b%\x7f\xc3\xa9";
  EXPECT_THAT(one.canonical(), HasSubstr(" a%0Afile 0 1 b%25%7F\xc3\xa9\n"));
  Key two = sample();
  two.files[0].name = "a%0A";
  one.files[0].name = "a\n";
  EXPECT_NE(one.fingerprint(), two.fingerprint());
}

}  // namespace
}  // namespace wcache

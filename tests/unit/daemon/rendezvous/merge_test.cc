#include <gtest/gtest.h>

#include "daemon/rendezvous/rendezvous.h"

namespace wcache {
namespace {

Key part(Layout layout, std::vector<std::pair<std::string, std::string>> files) {
  Key key;
  key.layout = layout;
  key.tp_size = 2;
  for (auto& [name, content] : files) key.files.push_back({name, content.size(), digest_of(content)});
  return key;
}

const std::vector<std::string> kLabels = {"host-a", "host-b"};

TEST(MergeParts, ShardedPartsBecomeOneKeyWhateverTheOrder) {
  const Key a = part(Layout::sharded, {{"config.json", "{}"}, {"model-rank-0-part-0.safetensors", "zero"}});
  const Key b = part(Layout::sharded, {{"config.json", "{}"}, {"model-rank-1-part-0.safetensors", "one"}});
  const auto ab = merge_parts({a, b}, kLabels);
  const auto ba = merge_parts({b, a}, kLabels);
  ASSERT_TRUE(ab) << ab.error().message;
  ASSERT_TRUE(ba);
  EXPECT_EQ(ab->files.size(), 3u);
  EXPECT_EQ(ab->canonical(), ba->canonical());
}

TEST(MergeParts, AFileThatDiffersIsNamedWithBothNodes) {
  const auto merged = merge_parts(
      {part(Layout::sharded, {{"config.json", "{}"}}), part(Layout::sharded, {{"config.json", "[]"}})},
      kLabels);
  ASSERT_FALSE(merged);
  EXPECT_EQ(merged.error().reason, Reason::mismatch);
  EXPECT_NE(merged.error().message.find("digest of config.json"), std::string::npos)
      << merged.error().message;
  EXPECT_NE(merged.error().message.find("host-b"), std::string::npos);
}

TEST(MergeParts, UnshardedNodesMustHoldTheSameFiles) {
  const Key a = part(Layout::checkpoint, {{"config.json", "{}"}, {"model.safetensors", "w"}});
  const auto same = merge_parts({a, a}, kLabels);
  ASSERT_TRUE(same);
  EXPECT_EQ(same->canonical(), a.canonical());
  const auto missing = merge_parts({a, part(Layout::checkpoint, {{"config.json", "{}"}})}, kLabels);
  ASSERT_FALSE(missing);
  EXPECT_NE(missing.error().message.find("file model.safetensors"), std::string::npos)
      << missing.error().message;
}

TEST(MergeParts, FieldsAreNamed) {
  Key a = part(Layout::sharded, {});
  Key b = a;
  b.tp_size = 4;
  const auto merged = merge_parts({a, b}, kLabels);
  ASSERT_FALSE(merged);
  EXPECT_NE(merged.error().message.find("tp_size (2 and 4)"), std::string::npos) << merged.error().message;
}

}  // namespace
}  // namespace wcache

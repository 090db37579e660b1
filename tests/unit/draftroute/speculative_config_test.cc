#include "draftroute/speculative_config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace wcache::draftroute {
namespace {

TEST(SpeculativeConfig, TakesDashedKeysAndNumbersWrittenAsStrings) {
  const auto spec = parse_speculative_config(R"({"method": "mimo_mtp", "num-speculative-tokens": "2"})", 1);
  ASSERT_TRUE(spec) << spec.error().message;
  EXPECT_EQ(spec->method, "mtp");
  EXPECT_EQ(spec->method_as_given, "mimo_mtp");
  EXPECT_EQ(spec->num_speculative_tokens, 2u);
}

TEST(SpeculativeConfig, NullIsAsGoodAsAbsent) {
  const auto spec = parse_speculative_config(
      R"({"method": "mtp", "model": null, "num_speculative_tokens": 1, "draft_load_config": null})", 1);
  ASSERT_TRUE(spec) << spec.error().message;
  EXPECT_TRUE(spec->model.empty());
  EXPECT_FALSE(spec->has_draft_load_config);
}

TEST(SpeculativeConfig, RefusesWhatIsNoObject) {
  for (const char* text : {"", "[", "3", "\"mtp\"", "null", "[[\"method\", \"mtp\"]]"}) {
    const auto spec = parse_speculative_config(text, 1);
    ASSERT_FALSE(spec) << text;
    EXPECT_EQ(spec.error().key, "speculative_config") << text;
  }
}

TEST(SpeculativeConfig, RefusesAKeyGivenInBothSpellings) {
  const auto spec = parse_speculative_config(
      R"({"method": "mtp", "num-speculative-tokens": 1, "num_speculative_tokens": 2})", 1);
  ASSERT_FALSE(spec);
  EXPECT_EQ(spec.error().reason, Reason::invalid);
}

TEST(SpeculativeConfig, WithModelReplacesOnlyTheModel) {
  const auto before =
      nlohmann::json::parse(R"({"method": "mtp", "num_speculative_tokens": 1, "quantization": null})");
  const auto after = nlohmann::json::parse(with_model(before.dump(), "/mnt/wcache/draft0/0123"));
  EXPECT_EQ(after["model"], "/mnt/wcache/draft0/0123");
  for (const auto& [key, value] : before.items()) EXPECT_EQ(after[key], value);
  EXPECT_EQ(after.size(), before.size() + 1);
}

}  // namespace
}  // namespace wcache::draftroute

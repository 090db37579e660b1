// The cases of tests/tools/malformed.py, which the engine tests hold against the safetensors library itself.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/checkpoint/checkpoint.h"
#include "tests/unit/core/checkpoint/support.h"

namespace wcache {
namespace {

using ::testing::HasSubstr;

/// The library's word for a refusal, where ours is the same. Names given twice we refuse as such, and
/// earlier.
std::string library_check(const std::string& name, const nlohmann::json& wanted) {
  const std::string word = wanted.value("library", "");
  return word == "accepts" || name.starts_with("name-twice") ? std::string() : word;
}

TEST(Malformed, EveryCaseEndsAsItsMakerSays) {
  if (std::system("python3 -c '' 2>/dev/null") != 0) GTEST_SKIP() << "there is no python3";
  const testing::TempDir dir;
  const std::string tool = WCACHE_SOURCE_DIR "/tests/tools/malformed.py";
  ASSERT_EQ(std::system(("python3 -B '" + tool + "' '" + dir.path().string() + "'").c_str()), 0);
  std::ifstream text(dir.path() / "cases.json");
  const nlohmann::json cases = nlohmann::json::parse(text);
  ASSERT_GT(cases.size(), 100u);
  std::filesystem::current_path(dir.path());  // a hub id is one only as a relative path
  for (const auto& [name, wanted] : cases.items()) {
    SCOPED_TRACE(name);
    if (wanted.value("needs", "") == "non-root" && geteuid() == 0)
      continue;  // OpenCheckpoint.WhatMayNotBeRead has it
    const Result<Checkpoint> checkpoint = open_checkpoint(wanted.at("model").get<std::string>());
    EXPECT_EQ(checkpoint.has_value(), wanted.at("ok").get<bool>());
    if (checkpoint) continue;
    const Error& error = checkpoint.error();
    EXPECT_EQ(to_string(error.reason), wanted.value("reason", "served")) << error.message;
    EXPECT_THAT(error.message, HasSubstr(wanted.value("mentions", "")));
    EXPECT_THAT(error.message, HasSubstr(library_check(name, wanted)));
  }
  std::filesystem::current_path("/");
}

}  // namespace
}  // namespace wcache

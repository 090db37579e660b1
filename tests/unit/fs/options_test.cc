#include "fs/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace wcache {
namespace {

using testing::HasSubstr;

TEST(WcachefsOptions, ADirectoryIsEnough) {
  Result<ParsedOptions> parsed = parse_options({"/mnt/wcache"});
  ASSERT_TRUE(parsed) << parsed.error().message;
  EXPECT_EQ(parsed->options.directory, "/mnt/wcache");
  EXPECT_EQ(parsed->options.run_dir, std::nullopt);
  EXPECT_FALSE(parsed->options.foreground);
  EXPECT_FALSE(parsed->options.allow_other);
  EXPECT_TRUE(parsed->options.passthrough);
  EXPECT_FALSE(parsed->text);
}

TEST(WcachefsOptions, EveryOptionOfItsOwn) {
  Result<ParsedOptions> parsed = parse_options(
      {"-f", "-o", "run_dir=/run/a,allow_other", "/mnt", "-o", "no_passthrough,log_level=debug"});
  ASSERT_TRUE(parsed) << parsed.error().message;
  EXPECT_EQ(parsed->options.directory, "/mnt");
  EXPECT_EQ(parsed->options.run_dir, "/run/a");
  EXPECT_TRUE(parsed->options.foreground);
  EXPECT_TRUE(parsed->options.allow_other);
  EXPECT_FALSE(parsed->options.passthrough);
  EXPECT_EQ(parsed->options.log_level, spdlog::level::debug);
}

TEST(WcachefsOptions, TheFormOfMount8) {
  Result<ParsedOptions> parsed =
      parse_options({"wcache", "/mnt/wcache", "-o",
                     "rw,nosuid,nodev,noauto,_netdev,x-systemd.automount,allow_other,run_dir=/r"});
  ASSERT_TRUE(parsed) << parsed.error().message;
  EXPECT_EQ(parsed->options.directory, "/mnt/wcache");
  EXPECT_TRUE(parsed->options.allow_other);
  EXPECT_EQ(parsed->options.run_dir, "/r");
}

TEST(WcachefsOptions, ABackslashKeepsAComma) {
  Result<ParsedOptions> parsed = parse_options({"/mnt", "-o", "run_dir=/a\\,b\\\\c,allow_other"});
  ASSERT_TRUE(parsed) << parsed.error().message;
  EXPECT_EQ(parsed->options.run_dir, "/a,b\\c");
  EXPECT_TRUE(parsed->options.allow_other);
}

TEST(WcachefsOptions, WhatItDoesNotKnowIsRefusedByName) {
  for (const auto& [arguments, word] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"/mnt", "-o", "nonsense"}, "nonsense"},
           {{"/mnt", "-o", "uid=3"}, "uid=3"},
           {{"/mnt", "-o", "log_level=loud"}, "loud"},
           {{"/mnt", "--nonsense"}, "--nonsense"},
           {{"a", "b", "c"}, "c"},
           {{}, "DIR"},
           {{"/mnt", "-o"}, "-o"}}) {
    Result<ParsedOptions> parsed = parse_options(arguments);
    ASSERT_FALSE(parsed) << word;
    EXPECT_EQ(parsed.error().reason, Reason::invalid);
    EXPECT_THAT(parsed.error().message, HasSubstr(word));
  }
}

TEST(WcachefsOptions, HelpAndVersionAreTexts) {
  Result<ParsedOptions> help = parse_options({"--help"});
  ASSERT_TRUE(help && help->text);
  for (const char* word : {"DIR", "run_dir", "allow_other", "no_passthrough", "log_level", "-f"})
    EXPECT_THAT(help->text->text, HasSubstr(word));
  Result<ParsedOptions> version = parse_options({"--version"});
  ASSERT_TRUE(version && version->text);
  EXPECT_THAT(version->text->text, HasSubstr("wcachefs "));
}

}  // namespace
}  // namespace wcache

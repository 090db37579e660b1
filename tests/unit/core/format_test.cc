#include "core/format.h"

#include <gtest/gtest.h>

namespace wcache {
namespace {

std::uint64_t size_of(std::string_view text) {
  const auto size = parse_size(text, "--memory-limit");
  return size ? *size : 0;
}

TEST(ParseSize, TakesBytesAndBinaryUnits) {
  EXPECT_EQ(size_of("1"), 1U);
  EXPECT_EQ(size_of("4096B"), 4096U);
  EXPECT_EQ(size_of("3K"), 3U << 10);
  EXPECT_EQ(size_of("3k"), 3U << 10);
  EXPECT_EQ(size_of("512MiB"), 512U << 20);
  EXPECT_EQ(size_of("2GB"), std::uint64_t{2} << 30);
  EXPECT_EQ(size_of("1T"), std::uint64_t{1} << 40);
  EXPECT_EQ(size_of("18446744073709551615"), UINT64_MAX);
}

TEST(ParseSize, RefusesTheRestAndNamesTheOption) {
  for (const char* text : {"", "0", "0G", "-1", "+1", "1.5G", "G", "1 G", "1P", "1GX", "1KiBs", "0x10",
                           "18446744073709551616", "16777216T"}) {
    const auto size = parse_size(text, "--memory-limit");
    ASSERT_FALSE(size) << text;
    EXPECT_EQ(size.error().reason, Reason::invalid) << text;
    EXPECT_EQ(size.error().key, "--memory-limit") << text;
    EXPECT_FALSE(size.error().hint.empty()) << text;
  }
}

TEST(HumanSize, ChoosesTheUnit) {
  EXPECT_EQ(human_size(0), "0 B");
  EXPECT_EQ(human_size(1023), "1023 B");
  EXPECT_EQ(human_size(1024), "1.0 KiB");
  EXPECT_EQ(human_size(1536), "1.5 KiB");
  EXPECT_EQ(human_size((1U << 20) - 1), "1.0 MiB");
  EXPECT_EQ(human_size(std::uint64_t{12} << 30), "12.0 GiB");
  EXPECT_EQ(human_size(UINT64_MAX), "16777216.0 TiB");
}

TEST(HumanRate, ShowsNothingForWhatIsNotKnown) {
  EXPECT_EQ(human_rate(1.5 * (1 << 30)), "1.5 GiB/s");
  EXPECT_EQ(human_rate(-1), "0 B/s");
  EXPECT_EQ(human_rate(0.0 / 0.0), "0 B/s");
  EXPECT_EQ(human_rate(1e300), "0 B/s");
}

TEST(HumanSeconds, ShowsTwoUnits) {
  EXPECT_EQ(human_seconds(0), "0 s");
  EXPECT_EQ(human_seconds(-5), "0 s");
  EXPECT_EQ(human_seconds(59.9), "59 s");
  EXPECT_EQ(human_seconds(123), "2 min 3 s");
  EXPECT_EQ(human_seconds(5 * 3600 + 600), "5 h 10 min");
  EXPECT_EQ(human_seconds(3 * 86400 + 4 * 3600), "3 d 4 h");
  EXPECT_EQ(human_seconds(0.0 / 0.0), "0 s");
}

TEST(Printable, KeepsTextAndReplacesWhatDrivesATerminal) {
  EXPECT_EQ(printable("model-Ä-模型.safetensors"), "model-Ä-模型.safetensors");
  EXPECT_EQ(printable("a\x1b[31mb\nc\x7f"), "a?[31mb?c?");
  EXPECT_EQ(printable("\xff\xc0\x80 \xe2\x82"), "??? ??");
  EXPECT_EQ(printable("\xc2\x9b"
                      "31m"),
            "?31m");
  EXPECT_EQ(printable("\xed\xa0\x80"), "???");
}

}  // namespace
}  // namespace wcache

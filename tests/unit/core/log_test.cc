#include "core/log.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/fd.h"
#include "tests/unit/core/temp_dir.h"

namespace wcache {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::wcache::testing::read_file;
using ::wcache::testing::TempDir;

TEST(LogLevel, TakesTheWordsAndNamesThemOtherwise) {
  EXPECT_EQ(parse_log_level("trace").value(), spdlog::level::trace);
  EXPECT_EQ(parse_log_level("warning").value(), spdlog::level::warn);
  EXPECT_EQ(parse_log_level("off").value(), spdlog::level::off);
  for (std::string_view word : {"", "warn", "INFO", "3"}) {
    const auto level = parse_log_level(word);
    ASSERT_FALSE(level) << word;
    EXPECT_EQ(level.error().reason, Reason::invalid);
    EXPECT_EQ(level.error().key, "log-level");
    EXPECT_THAT(level.error().hint, HasSubstr("debug, info, warning"));
  }
}

TEST(Log, WritesOneLineWithNamePidAndLevel) {
  const TempDir dir;
  const auto logger = make_logger({"wcached", spdlog::level::info, -1, dir / "log"});
  ASSERT_TRUE(logger);
  (*logger)->info("filled {} bytes", 7);
  (*logger)->debug("not this");
  const std::string pid = std::to_string(getpid());
  EXPECT_THAT(read_file(dir / "log"),
              MatchesRegex("[0-9]+-[0-9]+-[0-9]+ [0-9]+:[0-9]+:[0-9]+\\.[0-9]+ wcached\\[" + pid +
                           "\\] info: filled 7 bytes\n"));
}

TEST(Log, AppendsToAPrivateFileAndFollowsNoLink) {
  const TempDir dir;
  for (const char* text : {"first", "second"})
    (*make_logger({"a", spdlog::level::info, -1, dir / "log"}))->info(text);
  EXPECT_THAT(read_file(dir / "log"), HasSubstr("first\n"));
  EXPECT_THAT(read_file(dir / "log"), EndsWith("second\n"));
  struct stat st {};
  ASSERT_EQ(stat((dir / "log").c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777u, 0600u);

  std::filesystem::create_symlink(dir / "log", dir / "link");
  EXPECT_FALSE(make_logger({"a", spdlog::level::info, -1, dir / "link"}));
}

TEST(Log, MessageCannotForgeALine) {
  const TempDir dir;
  const auto logger = make_logger({"a", spdlog::level::info, -1, dir / "log"});
  (*logger)->info("one\ntwo\x1b[31m");
  EXPECT_THAT(read_file(dir / "log"), EndsWith("one?two?[31m\n"));
}

TEST(Log, FileThatCannotBeOpenedIsAnError) {
  const auto logger = make_logger({"a", spdlog::level::info, -1, "/nonexistent/log"});
  ASSERT_FALSE(logger);
  EXPECT_THAT(logger.error().message, HasSubstr("/nonexistent/log"));
}

TEST(Log, StreamThatIsFullOrGoneStopsNobody) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
  const Fd read_end(ends[0]);
  const Fd write_end(ends[1]);
  const auto logger = make_logger({"a", spdlog::level::info, write_end.get(), {}});
  const std::string page(4096, 'x');
  while (write(write_end.get(), page.data(), page.size()) > 0) {
  }
  (*logger)->info("dropped");  // returns
  const auto nowhere = make_logger({"a", spdlog::level::info, -1, {}});
  (*nowhere)->info("nothing");
}

}  // namespace
}  // namespace wcache

#include "core/result.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cerrno>
#include <utility>

namespace wcache {
namespace {

using ::testing::StartsWith;

// The contract's closed set: word and exit code of every reason.
constexpr std::array<std::tuple<Reason, std::string_view, int>, 16> kContract{
    {{Reason::invalid, "invalid", 2},
     {Reason::not_running, "not-running", 3},
     {Reason::not_found, "not-found", 3},
     {Reason::not_ready, "not-ready", 5},
     {Reason::mismatch, "mismatch", 4},
     {Reason::stale, "stale", 4},
     {Reason::evicted, "evicted", 3},
     {Reason::busy, "busy", 6},
     {Reason::over_budget, "over-budget", 7},
     {Reason::denied, "denied", 1},
     {Reason::unsupported, "unsupported", 1},
     {Reason::corrupt, "corrupt", 1},
     {Reason::io, "io", 1},
     {Reason::timeout, "timeout", 5},
     {Reason::version, "version", 1},
     {Reason::internal, "internal", 1}}};

TEST(Reason, HasTheContractsWordsAndExitCodes) {
  for (const auto& [reason, word, code] : kContract) {
    EXPECT_EQ(to_string(reason), word);
    EXPECT_EQ(reason_from_string(word), reason);
    EXPECT_EQ(exit_code(reason), code) << word;
  }
  EXPECT_EQ(reason_from_string("not_found"), Reason::internal);
  EXPECT_EQ(reason_from_string(""), Reason::internal);
}

TEST(Error, ErrnoIsClassified) {
  EXPECT_EQ(errno_error("x", EACCES).reason, Reason::denied);
  EXPECT_EQ(errno_error("x", EPERM).reason, Reason::denied);
  EXPECT_EQ(errno_error("x", ENOENT).reason, Reason::not_found);
  EXPECT_EQ(errno_error("x", ENOTDIR).reason, Reason::not_found);
  EXPECT_EQ(errno_error("x", EIO).reason, Reason::io);
  const Error error = errno_error("opening /a", ENOSPC);
  EXPECT_EQ(error.errnum, ENOSPC);
  EXPECT_THAT(error.message, StartsWith("opening /a: "));
}

TEST(Error, FailFillsEveryPart) {
  const Status status = fail(Reason::busy, "message", "hint", "key");
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().reason, Reason::busy);
  EXPECT_EQ(status.error().message, "message");
  EXPECT_EQ(status.error().hint, "hint");
  EXPECT_EQ(status.error().key, "key");
  EXPECT_EQ(status.error().errnum, 0);
}

}  // namespace
}  // namespace wcache

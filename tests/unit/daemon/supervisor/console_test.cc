#include "daemon/supervisor/console.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>

#include "core/fd.h"

namespace wcache {
namespace {

using namespace std::chrono_literals;

class Pipe {
 public:
  Pipe() {
    std::array<int, 2> ends{};
    EXPECT_EQ(pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK), 0);
    reader_ = Fd::adopt(ends[0]);
    writer_ = Fd::adopt(ends[1]);
  }
  int writer() const { return writer_.get(); }
  std::string text() const {
    std::array<char, 4096> buffer;
    const ssize_t got = read(reader_.get(), buffer.data(), buffer.size());
    return {buffer.data(), got > 0 ? static_cast<std::size_t>(got) : 0};
  }

 private:
  Fd reader_, writer_;
};

GroupProgress filling(std::uint64_t filled) {
  return {"target", "model", "filling", filled, 4096, 1024};
}

TEST(Describe, ShowsBytesRateAndWhatIsLeft) {
  EXPECT_EQ(describe(filling(1024)), "target model: filling, 1.0 KiB of 4.0 KiB (25 %), 1.0 KiB/s, 3 s left");
  EXPECT_EQ(describe({"target", "model", "starting", 0, 0, 0}), "target model: starting");
  EXPECT_EQ(describe({"target", "model", "starting", 0, 2048, 0}), "target model: starting, 2.0 KiB");
  EXPECT_EQ(describe({"target", "mo\x1b[2Jdel", "starting", 0, 0, 0}), "target mo?[2Jdel: starting");
}

TEST(Console, WithoutATerminalItWritesOnChangesAndEveryFiveSeconds) {
  const Pipe out, err;
  Console console(out.writer(), err.writer(), 0);
  const auto start = Console::Clock::now();
  console.show({{"target", "model", "starting", 0, 0, 0}}, start);
  EXPECT_EQ(err.text(), "wcache: target model: starting\n");
  console.show({filling(1024)}, start + 1s);
  EXPECT_EQ(err.text(), "wcache: " + describe(filling(1024)) + "\n");
  console.show({filling(2048)}, start + 2s);
  EXPECT_EQ(err.text(), "");
  console.show({filling(2048)}, start + 7s);
  EXPECT_EQ(err.text(), "wcache: " + describe(filling(2048)) + "\n");
  console.show({filling(2048)}, start + 13s);
  EXPECT_EQ(err.text(), "");  // nothing new
  EXPECT_EQ(out.text(), "");
}

TEST(Console, OnATerminalItRewritesItsLines) {
  const Pipe out, err;
  const auto start = Console::Clock::now();
  Console console(out.writer(), err.writer(), 30);
  console.show({filling(1024)}, start);
  const std::string line = describe(filling(1024)).substr(0, 29) + "\n";
  EXPECT_EQ(err.text(), line);
  console.show({filling(1024)}, start + 10ms);
  EXPECT_EQ(err.text(), "");
  console.show({filling(1024)}, start + 1s);
  EXPECT_EQ(err.text(), "\x1b[1A\x1b[2K" + line);
  console.line("READY target 00 -");
  EXPECT_EQ(out.text(), "READY target 00 -\n");
  EXPECT_EQ(err.text(), "\x1b[1A\x1b[2K");
  console.note("hello");
  EXPECT_EQ(err.text(), "wcache: hello\n");
}

}  // namespace
}  // namespace wcache

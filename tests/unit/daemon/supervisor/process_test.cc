#include "daemon/supervisor/process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/unit/client/temporary_directory.h"

namespace wcache {
namespace {

Deadline soon() {
  return deadline_in(std::chrono::seconds(20));
}

Process shell(const std::string& script, std::span<const int> inherited = {}) {
  return Process::start("/bin/sh", {"-c", script}, {.inherited = inherited}).value();
}

TEST(Process, TellsHowItEnded) {
  const auto code = shell("exit 7").wait(soon());
  ASSERT_TRUE(code);
  EXPECT_EQ(code->code, 7);
  EXPECT_FALSE(code->clean());
  EXPECT_EQ(code->describe(), "exit code 7");
  const auto killed = shell("kill -9 $$").wait(soon());
  ASSERT_TRUE(killed);
  EXPECT_EQ(killed->signal, SIGKILL);
  EXPECT_EQ(killed->describe(), "signal 9 (Killed)");
  EXPECT_TRUE(shell("true").wait(soon())->clean());
}

TEST(Process, EndsOnlyOnceAndStaysEnded) {
  const Process process = shell("exit 3");
  ASSERT_TRUE(process.wait(soon()));
  EXPECT_EQ(process.ended()->code, 3);
  process.signal(SIGKILL);  // of no consequence
  EXPECT_EQ(process.ended()->code, 3);
}

TEST(Process, AWaitHasADeadline) {
  const Process process = shell("exec sleep 60");
  EXPECT_FALSE(process.wait(deadline_in(std::chrono::milliseconds(20))));
  process.signal(SIGKILL);
  EXPECT_TRUE(process.wait(soon()));
}

TEST(Process, HasItsOwnGroupACleanMaskAndNoInput) {
  sigset_t set, before;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigprocmask(SIG_BLOCK, &set, &before);
  const TemporaryDirectory directory;
  const std::string out = directory / "out";
  const Process process =
      shell("exec >" + out +
            "; ps -o pgid= -p $$ | tr -d ' '; grep SigBlk /proc/$$/status | cut -f2; readlink "
            "/proc/$$/fd/0; read line || echo no input");
  ASSERT_TRUE(process.wait(soon()));
  sigprocmask(SIG_SETMASK, &before, nullptr);
  std::ifstream stream(out);
  std::string group, mask, input, rest;
  std::getline(stream, group);
  std::getline(stream, mask);
  std::getline(stream, input);
  std::getline(stream, rest);
  EXPECT_EQ(group, std::to_string(process.pid()));
  EXPECT_EQ(mask, "0000000000000000");
  EXPECT_EQ(input, "/dev/null");
  EXPECT_EQ(rest, "no input");
}

TEST(Process, InheritsWhatItIsGivenAndNothingElse) {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
  const Fd reader = Fd::adopt(ends[0]), writer = Fd::adopt(ends[1]);
  const std::array inherited = {writer.get()};
  const std::string read_end = std::to_string(reader.get()), write_end = std::to_string(writer.get());
  const Process process =
      shell("test -e /proc/$$/fd/" + read_end + " && exit 1; echo written >&" + write_end, inherited);
  EXPECT_TRUE(process.wait(soon())->clean());
  std::array<char, 16> text{};
  ASSERT_GT(read(reader.get(), text.data(), text.size() - 1), 0);
  EXPECT_STREQ(text.data(), "written\n");
}

TEST(Process, AProgramThatIsNotThereIsAnError) {
  const auto process = Process::start("/nowhere/wcached", {});
  ASSERT_FALSE(process);
  EXPECT_EQ(process.error().reason, Reason::not_found);
}

TEST(Process, AttachesToWhatOthersStarted) {
  const Process child = shell("exec sleep 60");
  const auto other = Process::attach(child.pid());
  ASSERT_TRUE(other);
  EXPECT_FALSE(other->ended());
  other->signal(SIGTERM);
  EXPECT_TRUE(child.wait(soon()));
  const auto gone = Process::attach(child.pid());
  ASSERT_FALSE(gone);
  EXPECT_EQ(gone.error().reason, Reason::not_running);
}

TEST(FindProgram, BesideTheProgramFirst) {
  const TemporaryDirectory own, path;
  const auto put = [](const std::string& file, int mode) {
    std::ofstream(file) << "#!/bin/sh\n";
    std::filesystem::permissions(file, static_cast<std::filesystem::perms>(mode));
  };
  put(path / "wcached", 0755);
  EXPECT_EQ(find_program("wcached", own.path(), "relative:" + path.path()).value(), path / "wcached");
  put(own / "wcached", 0755);
  EXPECT_EQ(find_program("wcached", own.path(), path.path()).value(), own / "wcached");
  put(own / "wcached", 0644);
  EXPECT_EQ(find_program("wcached", own.path(), path.path()).value(), path / "wcached");
  EXPECT_EQ(find_program("wcachefs", own.path(), path.path()).error().reason, Reason::not_found);
}

}  // namespace
}  // namespace wcache

#include "core/fd.h"

#include <dirent.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/core/temp_dir.h"

namespace wcache {
namespace {

using ::testing::HasSubstr;
using ::wcache::testing::TempDir;
using ::wcache::testing::write_file;

bool is_open(int fd) {
  return fcntl(fd, F_GETFD) >= 0;
}

/// Descriptors above 2 that a program sees which this process executes now.
std::string descriptors_after_exec() {
  int ends[2];
  EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDOUT_FILENO);
    execl("/bin/sh", "sh", "-c", "for fd in /proc/self/fd/*; do readlink $fd; done; exit 0", nullptr);
    _exit(127);
  }
  close(ends[1]);
  std::string seen;
  char buffer[4096];
  for (ssize_t n; (n = read(ends[0], buffer, sizeof buffer)) > 0;)
    seen.append(buffer, static_cast<std::size_t>(n));
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  return seen;
}

TEST(Fd, ClosesWhatItOwnsOnce) {
  const int raw = open("/dev/null", O_RDONLY | O_CLOEXEC);
  {
    Fd fd(raw);
    EXPECT_TRUE(fd);
    EXPECT_EQ(fd.get(), raw);
    Fd moved(std::move(fd));
    EXPECT_EQ(moved.get(), raw);
    Fd assigned;
    assigned = std::move(moved);
    EXPECT_TRUE(is_open(raw));
  }
  EXPECT_FALSE(is_open(raw));
  EXPECT_FALSE(Fd());
  Fd released(open("/dev/null", O_RDONLY | O_CLOEXEC));
  const int mine = released.release();
  EXPECT_FALSE(released);
  EXPECT_TRUE(is_open(mine));
  close(mine);
}

TEST(Fd, NothingIsInheritedByAnotherProgram) {
  const TempDir dir;
  write_file(dir / "secret-weights", "x");
  const Result<Fd> opened = open_file((dir / "secret-weights").c_str(), O_RDONLY);
  ASSERT_TRUE(opened);
  const Result<Fd> copy = opened->duplicate();
  ASSERT_TRUE(copy);
  const Fd adopted =
      Fd::adopt(open((dir / "secret-weights").c_str(), O_RDONLY));  // not close-on-exec by itself
  EXPECT_THAT(descriptors_after_exec(), ::testing::Not(HasSubstr("secret-weights")));
  const int leak = open((dir / "secret-weights").c_str(), O_RDONLY);
  EXPECT_THAT(descriptors_after_exec(), HasSubstr("secret-weights")) << "the test sees what is inherited";
  close(leak);
}

TEST(Fd, NumberIsAboveStandardError) {
  const pid_t child = fork();
  if (child == 0) {
    for (int fd : {0, 1, 2}) close(fd);
    const Result<Fd> opened = open_file("/dev/null", O_RDONLY);
    const Fd adopted = Fd::adopt(open("/dev/null", O_RDONLY));
    const Result<Fd> copy = opened->duplicate();
    const bool above = opened->get() > 2 && adopted.get() > 2 && copy->get() > 2;
    _exit(above && !is_open(0) && !is_open(1) && !is_open(2) ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(Fd, AdoptTakesAFailureAsItIs) {
  EXPECT_FALSE(Fd::adopt(-1));
}

TEST(OpenFile, NamesThePathInTheError) {
  const auto opened = open_file("/nonexistent/file", O_RDONLY);
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().reason, Reason::not_found);
  EXPECT_EQ(opened.error().errnum, ENOENT);
  EXPECT_THAT(opened.error().message, HasSubstr("/nonexistent/file"));
}

TEST(ReadExact, ReadsAllOrSaysWhereItEnded) {
  const TempDir dir;
  write_file(dir / "file", "0123456789");
  const Result<Fd> fd = open_file((dir / "file").c_str(), O_RDONLY);
  char buffer[8];
  const auto out = std::as_writable_bytes(std::span(buffer));
  ASSERT_TRUE(read_exact(fd->get(), out, 2, "file"));
  EXPECT_EQ(std::string(buffer, 8), "23456789");
  EXPECT_TRUE(read_exact(fd->get(), out.first(0), 10, "file"));
  const Status early = read_exact(fd->get(), out, 5, "file");
  ASSERT_FALSE(early);
  EXPECT_EQ(early.error().reason, Reason::io);
  EXPECT_EQ(early.error().errnum, 0);
  EXPECT_THAT(early.error().message, HasSubstr("file ends at byte 10, 3 bytes early"));
}

TEST(ReadExact, ReportsWhatTheKernelRefuses) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const Fd read_end(ends[0]);
  const Fd write_end(ends[1]);
  char buffer[4];
  const Status refused = read_exact(read_end.get(), std::as_writable_bytes(std::span(buffer)), 0, "pipe");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().errnum, ESPIPE);
}

TEST(Mapping, MapsAlignedAndUnmaps) {
  const std::size_t nbytes = (std::size_t{5} << 20) + 3;
  const Fd memory = Fd::adopt(memfd_create("test", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(memory.get(), static_cast<off_t>(nbytes)), 0);
  ASSERT_EQ(pwrite(memory.get(), "end", 3, static_cast<off_t>(nbytes - 3)), 3);
  Result<Mapping> mapped = Mapping::map(memory.get(), nbytes, PROT_READ, MAP_SHARED, "test");
  ASSERT_TRUE(mapped) << mapped.error().message;
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(mapped->data()) % (2u << 20), 0u);
  EXPECT_EQ(mapped->size(), nbytes);
  EXPECT_EQ(std::memcmp(mapped->data() + nbytes - 3, "end", 3), 0);
  Mapping moved(std::move(*mapped));
  EXPECT_EQ(mapped->data(), nullptr);
  std::byte* where = moved.data();
  moved.reset();
  EXPECT_EQ(msync(where, 4096, MS_ASYNC), -1) << "still mapped";
}

TEST(Mapping, EmptyNeedsNoDescriptorAndErrorsNameTheFile) {
  const auto empty = Mapping::map(-1, 0, PROT_READ, MAP_SHARED, "nothing");
  ASSERT_TRUE(empty);
  EXPECT_TRUE(empty->bytes().empty());
  for (std::size_t nbytes : {std::size_t{4096}, std::size_t{4} << 20}) {
    const auto bad = Mapping::map(-1, nbytes, PROT_READ, MAP_SHARED, "weights");
    ASSERT_FALSE(bad);
    EXPECT_THAT(bad.error().message, HasSubstr("weights"));
  }
}

}  // namespace
}  // namespace wcache

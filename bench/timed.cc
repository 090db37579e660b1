// wcache-bench: the timed loops of bench/run. Several paths are measured in turns, in another order each
// round, so that what changes on the machine meanwhile meets all of them. Prints one line of JSON; seconds
// are those of one pass over the file, or of one call.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "bench/null_fs.h"
#include "core/fd.h"
#include "core/result.h"
#include "daemon/memory/pages.h"

namespace wcache::bench {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kBlock = std::size_t{4} << 20;  // of one read(2)
constexpr int kCalls = 2000;                          // of one sample of a call

class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(Clock::now() - began_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point began_ = Clock::now();
};

struct Sample {
  double seconds = 0;
  std::uint64_t huge_nbytes = 0;  ///< of the mapping, mapped by 2 MiB entries
};

/// As engines map: no address asked for, no flags.
Result<std::byte*> map_plainly(int fd, std::size_t nbytes, int prot, const std::string& path) {
  void* data = mmap(nullptr, nbytes, prot, prot == PROT_READ ? MAP_PRIVATE : MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) return fail_errno("mapping " + path, errno);
  return static_cast<std::byte*>(data);
}

unsigned touch_pages(const std::byte* data, std::size_t nbytes) {
  unsigned sum = 0;
  for (std::size_t at = 0; at < nbytes; at += kPage) sum += std::to_integer<unsigned>(data[at]);
  return sum;
}

/// Keeps the compiler from leaving out what computes `value`.
void keep(unsigned value) {
  asm volatile("" : : "r"(value) : "memory");
}

Result<std::size_t> size_of(int fd, const std::string& path) {
  struct stat st {};
  if (fstat(fd, &st) != 0) return fail_errno(path, errno);
  if (st.st_size <= 0) return fail(Reason::invalid, path + " is empty");
  return static_cast<std::size_t>(st.st_size);
}

Result<Sample> time_read(const std::string& path) {
  static const auto buffer = std::make_unique<std::array<char, kBlock>>();
  const auto fd = open_file(path.c_str(), O_RDONLY);
  if (!fd) return fail(fd.error());
  const Stopwatch watch;
  for (;;) {
    const ssize_t n = read(fd->get(), buffer->data(), buffer->size());
    if (n < 0) return fail_errno("reading " + path, errno);
    if (n == 0) return Sample{watch.seconds()};
  }
}

Result<Sample> time_touch(const std::string& path) {
  const auto fd = open_file(path.c_str(), O_RDONLY);
  if (!fd) return fail(fd.error());
  const auto nbytes = size_of(fd->get(), path);
  if (!nbytes) return fail(nbytes.error());
  const Stopwatch watch;
  const auto data = map_plainly(fd->get(), *nbytes, PROT_READ, path);
  if (!data) return fail(data.error());
  keep(touch_pages(*data, *nbytes));
  Sample sample{watch.seconds()};
  sample.huge_nbytes = huge_mapped_nbytes(*data);
  munmap(*data, *nbytes);
  return sample;
}

/// The same, with what the page cache holds of the file dropped first.
Result<Sample> time_touch_dropped(const std::string& path) {
  const auto fd = open_file(path.c_str(), O_RDONLY);
  if (!fd) return fail(fd.error());
  if (const int error = posix_fadvise(fd->get(), 0, 0, POSIX_FADV_DONTNEED); error != 0)
    return fail_errno("dropping the cache of " + path, error);
  return time_touch(path);
}

/// Seconds of one of kCalls calls with the file's own name, from its directory: the path to it costs nothing.
template <class Call>
Result<Sample> time_calls(const std::string& path, Call call) {
  const std::filesystem::path file(path);
  if (chdir(file.parent_path().c_str()) != 0) return fail_errno(path, errno);
  const std::string name = file.filename();
  const Stopwatch watch;
  for (int i = 0; i < kCalls; ++i)
    if (!call(name.c_str())) return fail_errno(path, errno);
  return Sample{watch.seconds() / kCalls};
}

Result<Sample> time_getxattr(const std::string& path) {
  return time_calls(path, [](const char* name) {
    std::array<char, 256> value{};
    return getxattr(name, kAttribute, value.data(), value.size()) >= 0;
  });
}

Result<Sample> time_stat(const std::string& path) {
  return time_calls(path, [](const char* name) {
    struct stat st {};
    return stat(name, &st) == 0;
  });
}

/// A stat that the kernel may not answer from its own cache.
Result<Sample> time_stat_forced(const std::string& path) {
  return time_calls(path, [](const char* name) {
    struct statx st {};
    return statx(AT_FDCWD, name, AT_STATX_FORCE_SYNC, STATX_BASIC_STATS, &st) == 0;
  });
}

Result<Sample> time_open(const std::string& path) {
  return time_calls(path, [](const char* name) {
    const int fd = open(name, O_RDONLY | O_CLOEXEC);
    return fd >= 0 && close(fd) == 0;
  });
}

struct Mode {
  std::string_view name;
  Result<Sample> (*time)(const std::string& path);
};

constexpr std::array kModes{
    Mode{"read", time_read},         Mode{"touch", time_touch}, Mode{"touch-dropped", time_touch_dropped},
    Mode{"getxattr", time_getxattr}, Mode{"stat", time_stat},   Mode{"stat-forced", time_stat_forced},
    Mode{"open", time_open},
};

struct Series {
  std::string path;
  std::vector<double> seconds;
  std::uint64_t huge_nbytes = 0;
};

Status run_rounds(const Mode& mode, int rounds, std::vector<Series>& all) {
  for (int round = -1; round < rounds; ++round) {  // the first warms up and does not count
    for (std::size_t i = 0; i < all.size(); ++i) {
      Series& series = all[(i + static_cast<std::size_t>(round + 1)) % all.size()];
      const auto sample = mode.time(series.path);
      if (!sample) return fail(sample.error());
      if (round >= 0) series.seconds.push_back(sample->seconds);
      series.huge_nbytes = sample->huge_nbytes;
    }
  }
  return {};
}

void print(const std::vector<Series>& all) {
  std::printf("[");
  for (const Series& series : all) {
    std::printf("%s{\"huge_nbytes\": %llu, \"seconds\": [", &series == all.data() ? "" : ", ",
                static_cast<unsigned long long>(series.huge_nbytes));
    for (const double& seconds : series.seconds)
      std::printf("%s%.9f", &seconds == series.seconds.data() ? "" : ", ", seconds);
    std::printf("]}");
  }
  std::printf("]\n");
}

/// Allocates and touches a new file of DIR, as a fill's memory is; the file is gone afterwards.
Result<double> populate(const std::string& directory, std::size_t nbytes) {
  const std::string path = directory + "/populate";
  const Stopwatch watch;
  const auto fd = open_file(path.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
  if (!fd) return fail(fd.error());
  unlink(path.c_str());
  const auto length = static_cast<off_t>(nbytes);
  if (ftruncate(fd->get(), length) != 0 || fallocate(fd->get(), 0, 0, length) != 0)
    return fail_errno("allocating " + path, errno);
  const auto data = map_plainly(fd->get(), nbytes, PROT_READ | PROT_WRITE, path);
  if (!data) return fail(data.error());
  for (std::size_t at = 0; at < nbytes; at += kPage) (*data)[at] = std::byte{1};
  const double seconds = watch.seconds();
  munmap(*data, nbytes);
  return seconds;
}

/// Uses and frees memory: a virtual machine's host takes free huge pages back, and giving them again takes
/// longer than anything that is measured here.
Result<double> use_memory(std::size_t nbytes) {
  const Stopwatch watch;
  void* data = mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return fail_errno("using memory", errno);
  madvise(data, nbytes, MADV_HUGEPAGE);
  for (std::size_t at = 0; at < nbytes; at += kPage) static_cast<char*>(data)[at] = 1;
  munmap(data, nbytes);
  return watch.seconds();
}

Status run(const std::vector<std::string>& words) {
  if (words[0] == "populate" || words[0] == "use-memory") {
    const std::size_t nbytes = std::strtoull(words.back().c_str(), nullptr, 10);
    const auto seconds = words[0] == "populate" ? populate(words[1], nbytes) : use_memory(nbytes);
    if (!seconds) return fail(seconds.error());
    std::printf("{\"seconds\": %.9f}\n", *seconds);
    return {};
  }
  for (const Mode& mode : kModes) {
    if (mode.name != words[0]) continue;
    std::vector<Series> all;
    for (std::size_t i = 2; i < words.size(); ++i) all.push_back({words[i], {}, 0});
    const Status done = run_rounds(mode, std::atoi(words[1].c_str()), all);
    if (done) print(all);
    return done;
  }
  return fail(Reason::invalid, "no mode " + words[0]);
}

}  // namespace
}  // namespace wcache::bench

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() < 2 || (words[0] != "use-memory" && words.size() < 3)) {
    std::fprintf(
        stderr,
        "usage: wcache-bench MODE ROUNDS PATH...     MODE: read, touch, touch-dropped, getxattr, stat, "
        "stat-forced or open\n"
        "       wcache-bench populate DIR NBYTES\n"
        "       wcache-bench use-memory NBYTES\n");
    return 2;
  }
  const auto done = wcache::bench::run(words);
  if (done) return 0;
  std::fprintf(stderr, "wcache-bench: %s\n", done.error().message.c_str());
  return wcache::exit_code(done.error().reason);
}

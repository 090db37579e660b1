#include <fcntl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "tests/mount/fs/mounted.h"

namespace wcache::test {
namespace {

/// Every way of reading gives the same bytes, whatever serves them: options of the mount, kind of memory.
class ReadTest : public MountTest, public testing::WithParamInterface<std::tuple<const char*, bool>> {
 protected:
  void serve(std::vector<TestFile> files) {
    files_ = std::move(files);
    start(std::get<0>(GetParam()));
    if (IsSkipped()) return;
    TestEntryOptions options;
    options.memfd = std::get<1>(GetParam());
    daemon_ = std::make_unique<FakeDaemon>(run_dir(), make_test_entry(files_, options));
    path_ = entry(*daemon_);
  }
  std::string path(const TestFile& file) const { return path_ + "/" + file.name; }

  std::vector<TestFile> files_;
  std::unique_ptr<FakeDaemon> daemon_;
  std::string path_;
};

INSTANTIATE_TEST_SUITE_P(Ways, ReadTest,
                         testing::Combine(testing::Values("", "no_passthrough"), testing::Bool()),
                         [](const auto& way) {
                           return std::string(*std::get<0>(way.param) == '\0' ? "Passthrough" : "Replies") +
                                  (std::get<1>(way.param) ? "OfMemfd" : "OfTmpfs");
                         });

TEST_P(ReadTest, EveryFileByteForByte) {
  serve(small_model());
  if (IsSkipped()) return;
  for (const TestFile& file : files_) {
    EXPECT_TRUE(read_file(path(file)) == file.bytes) << file.name;
    struct stat st {};
    ASSERT_EQ(stat(path(file).c_str(), &st), 0);
    EXPECT_EQ(static_cast<std::size_t>(st.st_size), file.bytes.size());
    EXPECT_EQ(st.st_mode, S_IFREG | 0444u);
    EXPECT_EQ(st.st_mtim.tv_sec * 1'000'000'000 + st.st_mtim.tv_nsec, file.mtime_ns);
  }
  const bool wanted = *std::get<0>(GetParam()) == '\0';
  EXPECT_EQ(status().passthrough, wanted && WCACHE_HAVE_PASSTHROUGH) << status().reason;
}

TEST_P(ReadTest, MappingsSharedAndPrivate) {
  serve(small_model());
  if (IsSkipped()) return;
  for (const TestFile& file : files_) {
    if (file.bytes.empty()) continue;
    Result<Fd> fd = open_file(path(file).c_str(), O_RDONLY);
    ASSERT_TRUE(fd) << fd.error().message;
    for (const int flags : {MAP_SHARED, MAP_PRIVATE}) {
      Result<Mapping> mapping = Mapping::map(fd->get(), file.bytes.size(), PROT_READ, flags, file.name);
      ASSERT_TRUE(mapping) << mapping.error().message;
      const auto* text = reinterpret_cast<const char*>(mapping->data());
      EXPECT_TRUE(std::string_view(text, mapping->size()) == file.bytes) << file.name;
    }
    // A private mapping may be written, as engines do; nobody else sees it.
    Result<Mapping> mapping =
        Mapping::map(fd->get(), file.bytes.size(), PROT_READ | PROT_WRITE, MAP_PRIVATE, file.name);
    ASSERT_TRUE(mapping) << mapping.error().message;
    mapping->data()[0] = std::byte{0};
    EXPECT_TRUE(read_file(path(file)) == file.bytes) << file.name;
  }
}

TEST_P(ReadTest, DirectIo) {
  serve({test_weights("model.safetensors", {"a"}, 3 << 20)});
  if (IsSkipped()) return;
  const std::string& bytes = files_[0].bytes;
  Result<Fd> fd = open_file(path(files_[0]).c_str(), O_RDONLY | O_DIRECT);
  ASSERT_TRUE(fd) << fd.error().message;
  constexpr std::size_t kBlock = 1 << 20;
  const std::unique_ptr<void, decltype(&std::free)> buffer(std::aligned_alloc(4096, kBlock), &std::free);
  std::string got;
  for (;;) {
    const ssize_t n = pread(fd->get(), buffer.get(), kBlock, static_cast<off_t>(got.size()));
    ASSERT_GE(n, 0) << errno;
    if (n == 0) break;
    got.append(static_cast<const char*>(buffer.get()), static_cast<std::size_t>(n));
  }
  EXPECT_TRUE(got == bytes);
}

TEST_P(ReadTest, Sendfile) {
  serve(small_model());
  if (IsSkipped()) return;
  const Fd out = Fd::adopt(memfd_create("sendfile", MFD_CLOEXEC));
  for (const TestFile& file : files_) {
    Result<Fd> fd = open_file(path(file).c_str(), O_RDONLY);
    ASSERT_TRUE(fd) << fd.error().message;
    ASSERT_EQ(ftruncate(out.get(), 0), 0);
    lseek(out.get(), 0, SEEK_SET);
    std::size_t sent = 0;
    while (sent < file.bytes.size()) {
      const ssize_t n = sendfile(out.get(), fd->get(), nullptr, file.bytes.size() - sent);
      ASSERT_GT(n, 0) << errno;
      sent += static_cast<std::size_t>(n);
    }
    std::string got(file.bytes.size(), '\0');
    ASSERT_TRUE(read_exact(out.get(), std::as_writable_bytes(std::span(got)), 0, "the copy"));
    EXPECT_TRUE(got == file.bytes) << file.name;
  }
}

TEST_P(ReadTest, FourReadersAtOnce) {
  serve({test_weights("model.safetensors", {"a", "b"}, 4 << 20)});
  if (IsSkipped()) return;
  std::vector<std::thread> readers;
  std::atomic<int> equal = 0;
  for (int i = 0; i < 4; ++i)
    readers.emplace_back([&] {
      for (int round = 0; round < 3; ++round) equal += read_file(path(files_[0])) == files_[0].bytes ? 1 : 0;
    });
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(equal, 12);
}

TEST_P(ReadTest, TensorsAreRunsOfTheirFiles) {
  serve(small_model());
  if (IsSkipped()) return;
  const std::string tensors = path_ + "/.wcache/tensors/";
  for (const TestFile& file : files_)
    for (const TensorInfo& tensor : file.tensors) {
      const std::string name = tensor.name == "."       ? "%2E"
                               : tensor.name == "a/b%c" ? "a%2Fb%25c"
                                                        : tensor.name;
      EXPECT_TRUE(read_file(tensors + name) == file.bytes.substr(tensor.offset, tensor.nbytes)) << name;
      Result<Fd> fd = open_file((tensors + name).c_str(), O_RDONLY);
      ASSERT_TRUE(fd) << fd.error().message;
      Result<Mapping> mapping = Mapping::map(fd->get(), tensor.nbytes, PROT_READ, MAP_SHARED, name);
      ASSERT_TRUE(mapping) << mapping.error().message;
      const auto* text = reinterpret_cast<const char*>(mapping->data());
      EXPECT_TRUE(std::string_view(text, mapping->size()) == file.bytes.substr(tensor.offset, tensor.nbytes))
          << name;
    }
}

TEST_P(ReadTest, ReadsAtOddPlaces) {
  serve({test_weights("model.safetensors", {"a"}, 300'000)});
  if (IsSkipped()) return;
  const std::string& bytes = files_[0].bytes;
  Result<Fd> fd = open_file(path(files_[0]).c_str(), O_RDONLY);
  ASSERT_TRUE(fd) << fd.error().message;
  for (const std::size_t offset :
       {std::size_t{0}, std::size_t{1}, std::size_t{4095}, std::size_t{131'073}, bytes.size() - 1})
    for (const std::size_t size : {std::size_t{1}, std::size_t{4097}, std::size_t{200'000}}) {
      const std::string want = bytes.substr(offset, size);
      std::string got(size, '\0');
      const ssize_t n = pread(fd->get(), got.data(), got.size(), static_cast<off_t>(offset));
      ASSERT_EQ(n, static_cast<ssize_t>(want.size()));
      got.resize(want.size());
      EXPECT_TRUE(got == want) << offset << " " << size;
    }
  char byte = 0;
  EXPECT_EQ(pread(fd->get(), &byte, 1, static_cast<off_t>(bytes.size())), 0);
}

/// Bytes of this process's mapping at `begin` that are mapped by 2 MiB entries.
std::size_t huge_mapped(const void* begin) {
  std::ifstream smaps("/proc/self/smaps");
  char wanted[32];
  std::snprintf(wanted, sizeof wanted, "%lx-", reinterpret_cast<unsigned long>(begin));
  bool here = false;
  for (std::string line; std::getline(smaps, line);) {
    if (line.find(" kB") == std::string::npos) here = line.starts_with(wanted);
    if (here && line.starts_with("ShmemPmdMapped:"))
      return std::strtoull(line.c_str() + sizeof "ShmemPmdMapped:", nullptr, 10) << 10;
  }
  return 0;
}

class HugePageTest : public MountTest {};

TEST_F(HugePageTest, AMappingThroughTheMountIsMadeOfHugeEntries) {
  start();
  if (IsSkipped()) return;
  const TestFile weights = test_weights("model.safetensors", {"a"}, 8 << 20);
  const FakeDaemon daemon(run_dir(), make_test_entry({weights}));
  if (daemon.entry().arena.pages != PageKind::huge)
    GTEST_SKIP() << "no huge pages here: " << daemon.entry().arena.note;
  if (!status().passthrough) GTEST_SKIP() << "no passthrough here: " << status().reason;
  Result<Fd> fd = open_file((entry(daemon) + "/model.safetensors").c_str(), O_RDONLY);
  ASSERT_TRUE(fd) << fd.error().message;
  for (const int flags : {MAP_SHARED, MAP_PRIVATE}) {
    Result<Mapping> mapping = Mapping::map(fd->get(), weights.bytes.size(), PROT_READ, flags, "weights");
    ASSERT_TRUE(mapping) << mapping.error().message;
    unsigned sum = 0;
    for (std::size_t i = 0; i < mapping->size(); i += 4096) sum += static_cast<unsigned>(mapping->data()[i]);
    EXPECT_NE(sum, 0u);
    EXPECT_GE(huge_mapped(mapping->data()), 8u << 20) << (flags == MAP_SHARED ? "shared" : "private");
  }
}

}  // namespace
}  // namespace wcache::test

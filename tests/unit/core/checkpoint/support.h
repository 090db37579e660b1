#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "core/fd.h"
#include "core/result.h"

namespace wcache::testing {

/// A directory of the test's own, gone with it.
class TempDir {
 public:
  TempDir() {
    std::string pattern = (std::filesystem::temp_directory_path() / "wcache-checkpoint-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) std::abort();
    path_ = std::filesystem::canonical(pattern);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }

  /// Writes a file, making the directories above it.
  std::filesystem::path write(const std::filesystem::path& name, std::string_view bytes) const {
    const std::filesystem::path path = path_ / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }

 private:
  std::filesystem::path path_;
};

/// An unnamed file that holds `bytes`.
inline Fd memory_file(std::string_view bytes) {
  Fd fd = Fd::adopt(open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  EXPECT_TRUE(fd);
  EXPECT_EQ(write(fd.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  return fd;
}

inline std::string little_endian(std::uint64_t value, std::size_t nbytes = 8) {
  std::string out;
  for (std::size_t i = 0; i < nbytes; ++i) out += static_cast<char>(value >> (8 * i));
  return out;
}

/// A safetensors file of this header text and data.
inline std::string safetensors(std::string_view header, std::string_view data = {}) {
  return little_endian(header.size()) + std::string(header) + std::string(data);
}

/// A header entry. `shape` and `offsets` are JSON.
inline std::string entry(std::string_view dtype, std::string_view shape, std::string_view offsets) {
  return R"({"dtype":")" + std::string(dtype) + R"(","shape":)" + std::string(shape) + R"(,"data_offsets":)" +
         std::string(offsets) + "}";
}

/// A safetensors file of one U8 tensor.
inline std::string one_tensor(std::string_view name, std::string_view bytes) {
  const std::string n = std::to_string(bytes.size());
  return safetensors("{\"" + std::string(name) + "\":" + entry("U8", "[" + n + "]", "[0," + n + "]") + "}",
                     bytes);
}

}  // namespace wcache::testing

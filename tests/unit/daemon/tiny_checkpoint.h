#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

namespace wcache {

inline void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

inline std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// A safetensors file of two tensors, `weight_nbytes` bytes and 8 bytes.
inline std::string tiny_safetensors(std::size_t weight_nbytes, char seed) {
  std::string header = R"({"a.weight":{"dtype":"U8","shape":[)" + std::to_string(weight_nbytes) +
                       R"(],"data_offsets":[0,)" + std::to_string(weight_nbytes) +
                       R"(]},"b.bias":{"dtype":"F32","shape":[2],"data_offsets":[)" +
                       std::to_string(weight_nbytes) + "," + std::to_string(weight_nbytes + 8) + "]}}";
  while (header.size() % 8 != 0) header += ' ';
  std::string file(8, '\0');
  const std::uint64_t length = header.size();
  std::memcpy(file.data(), &length, sizeof length);
  file += header;
  std::uint32_t state = static_cast<std::uint32_t>(seed) + 1;
  const std::size_t begin = file.size();
  file.resize(begin + weight_nbytes + 8);
  for (std::size_t i = begin; i < file.size(); ++i) {
    state = state * 1664525 + 1013904223;
    file[i] = static_cast<char>(state >> 24);
  }
  return file;
}

/// A directory in Hugging Face layout with one weight file.
inline void make_tiny_checkpoint(const std::string& directory, std::size_t weight_nbytes = 3'000'001,
                                 char seed = 1) {
  std::filesystem::create_directories(directory + "/sub");
  write_file(directory + "/config.json", R"({"architectures":["Tiny"],"torch_dtype":"float32"})");
  write_file(directory + "/sub/notes.txt", "notes");
  write_file(directory + "/empty", "");
  write_file(directory + "/model.safetensors", tiny_safetensors(weight_nbytes, seed));
}

}  // namespace wcache

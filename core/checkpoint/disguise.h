#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "core/result.h"

namespace wcache {

/// What often lies where weights were expected, told by its first bytes.
struct Disguise {
  std::string_view what;  ///< "a Git-LFS pointer, not the weights themselves"
  std::string_view hint;
};

std::optional<Disguise> disguise_of(std::string_view first_bytes);

/// The same for an open file of `file_nbytes`; nullopt also where it cannot be read.
std::optional<Disguise> disguise_of(int fd, std::uint64_t file_nbytes);

}  // namespace wcache

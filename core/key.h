#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/entry_plan.h"

namespace wcache {

/// Everything that tells one entry from another. Device, tier, IPC kind and path are not in it: they say
/// where the bytes are, not which bytes. `tp_size` and `rank` count only in layouts where ranks hold
/// different bytes.
struct Key {
  static constexpr unsigned kVersion = 1;  ///< of the canonical text

  struct File {
    std::string name;
    std::uint64_t nbytes = 0;
    Digest digest;
    bool operator==(const File&) const = default;
  };
  Role role = Role::target;
  Layout layout = Layout::checkpoint;
  std::uint32_t tp_size = 1;
  std::vector<File> files;  ///< of all ranks, sorted by name (bytewise)

  /// Whether tp_size counts.
  bool ranks_differ() const { return layout == Layout::sharded || layout == Layout::published; }

  /// The text whose XXH3-128 is the fingerprint; docs/formats.md has its grammar.
  std::string canonical() const;
  Fingerprint fingerprint() const;
};

}  // namespace wcache

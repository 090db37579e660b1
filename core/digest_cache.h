#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "core/digest.h"
#include "core/result.h"

namespace wcache {

/// Looks an environment variable up; nullptr when it is not set.
using Environment = std::function<const char*(const char* name)>;

/// Where the digest cache is: $WCACHE_CACHE_DIR, else /var/cache/wcache for root, else
/// $XDG_CACHE_HOME/wcache, else $HOME/.cache/wcache. Reason::invalid when none of them is set to an absolute
/// path.
Result<std::filesystem::path> digest_cache_dir(const Environment& environment, std::uint32_t uid);

/// File digests that outlive the process, in a SQLite database that processes share. It is an aid and nothing
/// depends on it: whatever is wrong with directory or database (foreign, damaged, locked past the deadline,
/// not writable) ends in a cache that answers "not remembered", and `trouble` tells what it was. One thread
/// at a time.
///
/// A subject is a 128-bit digest over everything a file's digest depends on (core/fingerprint.cc: the
/// identity of the sources, pieces, segments, version of the digest tree); rows are never changed, only
/// superseded.
class DigestCache {
 public:
  struct Row {
    Digest subject;
    Digest digest;
    std::uint64_t nbytes = 0;
    std::string name;  ///< for people who look into the database
  };

  /// Remembers nothing.
  DigestCache();
  DigestCache(DigestCache&&) noexcept;
  DigestCache& operator=(DigestCache&&) noexcept;
  ~DigestCache();

  /// Opens or makes `dir`/digests.sqlite. The directory and the database must belong to the effective user
  /// and be writable by nobody else. No call waits for another process's lock longer than `patience`.
  static DigestCache open(const std::filesystem::path& dir,
                          std::chrono::milliseconds patience = std::chrono::seconds(2));

  /// The digest of a file of `nbytes`; rows that fail their check are not remembered.
  std::optional<Digest> find(const Digest& subject, std::uint64_t nbytes);

  /// In one transaction: all or none.
  void remember(std::span<const Row> rows);

  /// The first thing that went wrong, with a hint; empty when nothing did.
  const std::optional<Error>& trouble() const { return trouble_; }

 private:
  struct Database;
  void give_up(Error error);

  std::unique_ptr<Database> database_;
  std::optional<Error> trouble_;
};

}  // namespace wcache

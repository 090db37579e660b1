#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace wcache {

/// A 128-bit XXH3 digest. It guards against accident, not against a forger: XXH3 is no cryptographic hash.
struct Digest {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
  auto operator<=>(const Digest&) const = default;
};

/// What names a directory of the mount: the digest of an entry's key. Same 128 bits, another meaning.
struct Fingerprint {
  Digest digest;
  auto operator<=>(const Fingerprint&) const = default;
};

/// 32 lower-case hex digits, high half first: the canonical XXH128 spelling (`xxhsum -H2`).
std::string to_hex(const Digest& digest);
std::string to_hex(const Fingerprint& fingerprint);
/// Only exactly 32 lower-case hex digits parse.
std::optional<Digest> digest_from_hex(std::string_view hex);

/// XXH3-128 with seed 0 of the bytes.
Digest digest_of(std::span<const std::byte> bytes);
Digest digest_of(std::string_view text);

/// Content is hashed as a tree, so that blocks may arrive in any order and every byte is hashed once:
///
///   block    kHashBlock bytes of a segment, counted from the segment's own start (the last one shorter)
///   segment  a run of a file with a meaning of its own: the header, one tensor, a gap. A file of no known format is
///            one segment. digest = XXH3-128(digests of its blocks, 16 bytes each, high half first, big-endian;
///            then its length in bytes as 64-bit little-endian)
///   file     digest = XXH3-128(for each segment in order of offset: offset, length (64-bit little-endian each),
///            segment digest (16 bytes)). Segments cover the file without hole or overlap. An empty file has none.
///
/// docs/formats.md says the same for readers of other languages; tests recompute it in Python.
inline constexpr std::uint64_t kHashBlock = std::uint64_t{1} << 20;

/// Where a segment lies in its file, bytes.
struct Segment {
  std::uint64_t offset = 0;
  std::uint64_t nbytes = 0;
  bool operator==(const Segment&) const = default;
};

/// Blocks of a segment of `nbytes`: 0 for an empty one.
constexpr std::uint64_t block_count(std::uint64_t nbytes) { return (nbytes + kHashBlock - 1) / kHashBlock; }

Digest combine_blocks(std::span<const Digest> blocks, std::uint64_t nbytes);
Digest combine_segments(std::span<const Segment> segments, std::span<const Digest> digests);

/// A whole segment at once, for bytes that are all there.
Digest segment_digest(std::span<const std::byte> bytes);

/// A whole file image at once. `segments` as above; with none of them given the image is one segment.
Digest file_digest(std::span<const std::byte> image, std::span<const Segment> segments = {});

}  // namespace wcache

#include "core/digest.h"

#include <algorithm>
#include <array>
#include <cstring>

#include <xxhash.h>

namespace wcache {
namespace {

constexpr std::size_t kDigestBytes = 16;

std::array<std::byte, kDigestBytes> canonical(const Digest& digest) {
  XXH128_canonical_t out;
  XXH128_canonicalFromHash(&out, XXH128_hash_t{digest.low, digest.high});
  std::array<std::byte, kDigestBytes> bytes;
  std::memcpy(bytes.data(), out.digest, kDigestBytes);
  return bytes;
}

void append(std::vector<std::byte>& out, const Digest& digest) {
  const auto bytes = canonical(digest);
  out.insert(out.end(), bytes.begin(), bytes.end());
}

void append_le64(std::vector<std::byte>& out, std::uint64_t value) {
  for (int i = 0; i < 8; ++i) out.push_back(static_cast<std::byte>(value >> (8 * i) & 0xff));
}

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

}  // namespace

std::string to_hex(const Digest& digest) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string out;
  out.reserve(2 * kDigestBytes);
  for (std::byte b : canonical(digest)) {
    out.push_back(kDigits[std::to_integer<unsigned>(b) >> 4]);
    out.push_back(kDigits[std::to_integer<unsigned>(b) & 15]);
  }
  return out;
}

std::string to_hex(const Fingerprint& fingerprint) { return to_hex(fingerprint.digest); }

std::optional<Digest> digest_from_hex(std::string_view hex) {
  if (hex.size() != 2 * kDigestBytes) return std::nullopt;
  std::array<std::uint64_t, 2> halves{};
  for (std::size_t i = 0; i < hex.size(); ++i) {
    const int value = hex_value(hex[i]);
    if (value < 0) return std::nullopt;
    halves[i / 16] = halves[i / 16] << 4 | static_cast<std::uint64_t>(value);
  }
  return Digest{halves[0], halves[1]};
}

Digest digest_of(std::span<const std::byte> bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return {hash.high64, hash.low64};
}

Digest digest_of(std::string_view text) { return digest_of(std::as_bytes(std::span(text.data(), text.size()))); }

Digest combine_blocks(std::span<const Digest> blocks, std::uint64_t nbytes) {
  std::vector<std::byte> node;
  node.reserve(blocks.size() * kDigestBytes + 8);
  for (const Digest& block : blocks) append(node, block);
  append_le64(node, nbytes);
  return digest_of(node);
}

Digest combine_segments(std::span<const Segment> segments, std::span<const Digest> digests) {
  std::vector<std::byte> node;
  node.reserve(segments.size() * (kDigestBytes + 16));
  for (std::size_t i = 0; i < segments.size(); ++i) {
    append_le64(node, segments[i].offset);
    append_le64(node, segments[i].nbytes);
    append(node, digests[i]);
  }
  return digest_of(node);
}

Digest segment_digest(std::span<const std::byte> bytes) {
  std::vector<Digest> blocks;
  blocks.reserve(block_count(bytes.size()));
  for (std::size_t at = 0; at < bytes.size(); at += kHashBlock)
    blocks.push_back(digest_of(bytes.subspan(at, std::min<std::size_t>(kHashBlock, bytes.size() - at))));
  return combine_blocks(blocks, bytes.size());
}

Digest file_digest(std::span<const std::byte> image, std::span<const Segment> segments) {
  const Segment whole{0, image.size()};
  if (segments.empty() && !image.empty()) segments = std::span(&whole, 1);
  std::vector<Digest> digests;
  digests.reserve(segments.size());
  for (const Segment& segment : segments)
    digests.push_back(segment_digest(image.subspan(segment.offset, segment.nbytes)));
  return combine_segments(segments, digests);
}

}  // namespace wcache

#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/fingerprint.h"
#include "core/key.h"
#include "core/manifest.h"

namespace wcache {

/// Takes the next piece of a text; pieces are of any length.
using TextSink = std::function<void(std::string_view)>;

/// manifest.json: the same as the manifest of one rank, readable, one file and one tensor a line. A name that
/// is not UTF-8 has U+FFFD for each wrong byte and `name_hex` with all of its bytes beside it. Rows that
/// point outside of their tables are left out.
void write_manifest_json(const ManifestView& manifest, const TextSink& sink);
std::string manifest_json(const ManifestView& manifest);

/// The key that manifests of all ranks of an entry, one each, describe. Reason::corrupt where role or layout
/// are none, a row points outside, or the manifests are not of one entry.
Result<Key> key_of(std::span<const ManifestView> ranks);

/// What fingerprint.json and `wcache fingerprint --json` say.
struct FingerprintText {
  Key key;
  std::vector<LeftOut> left_out;
  std::string_view name;     ///< of the checkpoint
  std::string_view source;   ///< where it was read from; empty: not said
  std::string_view path;     ///< of the entry's directory; empty: not said
  std::span<const How> how;  ///< of each of key.files; empty: not said
};

/// One JSON object: "fingerprint", "role", "path", "name", "source", "fields" (every field of the key but the
/// files), "files" (name, nbytes, digest, how), "left_out" (name, why). Ends with a newline.
std::string fingerprint_json(const FingerprintText& text);

/// fingerprint.json of an entry, from the manifests of all its ranks.
Result<std::string> fingerprint_json(std::span<const ManifestView> ranks);

}  // namespace wcache

#include "core/key.h"

namespace wcache {
namespace {

/// Percent-encodes what would break a line: control characters, '%' and DEL.
std::string escape(std::string_view name) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  std::string out;
  for (char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte != '%' && byte != 0x7f) {
      out.push_back(c);
    } else {
      out.push_back('%');
      out.push_back(kDigits[byte >> 4]);
      out.push_back(kDigits[byte & 15]);
    }
  }
  return out;
}

}  // namespace

std::string Key::canonical() const {
  std::string text = "wcache-key " + std::to_string(kVersion) + "\n";
  text += "role " + std::string(to_string(role)) + "\n";
  text += "layout " + std::string(to_string(layout)) + "\n";
  if (ranks_differ()) text += "tp_size " + std::to_string(tp_size) + "\n";
  for (const File& file : files)
    text +=
        "file " + to_hex(file.digest) + " " + std::to_string(file.nbytes) + " " + escape(file.name) + "\n";
  return text;
}

Fingerprint Key::fingerprint() const {
  return Fingerprint{digest_of(canonical())};
}

}  // namespace wcache

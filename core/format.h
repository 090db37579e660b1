#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/result.h"

namespace wcache {

/// A size as users write it: a whole number of bytes, or one with K, M, G or T (binary; a trailing "iB" or
/// "B" is allowed and either case). "0", a fraction, a sign and whatever passes 64 bits are invalid. `key`
/// names the option in the error.
Result<std::uint64_t> parse_size(std::string_view text, std::string_view key);

/// For people: "0 B", "999 B", "1.5 KiB", "12.0 GiB". Three significant digits or more.
std::string human_size(std::uint64_t nbytes);

/// For people: "1.5 GiB/s".
std::string human_rate(double bytes_per_second);

/// For people, rounded down: "0 s", "59 s", "2 min 3 s", "5 h 10 min", "3 d 4 h".
std::string human_seconds(double seconds);

/// `text` with control characters and bytes that are not UTF-8 replaced by '?', so that a file's name cannot
/// drive a terminal or break a line-oriented output.
std::string printable(std::string_view text);

}  // namespace wcache

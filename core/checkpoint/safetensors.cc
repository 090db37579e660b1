// The safetensors header. The order of checks and their names are those of the safetensors library
// (tensor.rs, 0.8), so that a file is refused here exactly where an engine would refuse it, and with the word
// its users can search for.

#include <simdjson.h>

#include <algorithm>
#include <array>
#include <bit>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>

#include "core/checkpoint/checkpoint.h"
#include "core/checkpoint/disguise.h"
#include "core/checkpoint/text.h"
#include "core/fd.h"
#include "core/format.h"

namespace wcache {
namespace {

namespace dom = simdjson::dom;

constexpr std::uint64_t kLengthBytes = 8;
constexpr std::uint64_t kLongestHeader = 100'000'000;
constexpr std::string_view kMetadata = "__metadata__";

constexpr std::array<std::pair<std::string_view, unsigned>, 22> kBitsOfDtype{{
    {"BF16", 16},   {"F32", 32},    {"F16", 16},        {"F8_E4M3", 8},     {"U8", 8},   {"I8", 8},
    {"F8_E8M0", 8}, {"F8_E5M2", 8}, {"I32", 32},        {"I64", 64},        {"F64", 64}, {"BOOL", 8},
    {"F4", 4},      {"I16", 16},    {"U16", 16},        {"U32", 32},        {"U64", 64}, {"C64", 64},
    {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8},
}};

std::optional<unsigned> bits_of(std::string_view dtype) {
  for (const auto& [word, bits] : kBitsOfDtype)
    if (word == dtype) return bits;
  return std::nullopt;
}

/// One entry of the header as written; not yet believed.
struct Entry {
  TensorInfo tensor;
  unsigned bits = 0;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

/// Reads one file's header. Errors are made by `bad` so that all have one form.
class HeaderReader {
 public:
  HeaderReader(int fd, std::uint64_t file_nbytes, std::string_view name)
      : fd_(fd), file_nbytes_(file_nbytes), name_(name) {}

  Result<std::vector<TensorInfo>> read() {
    if (Status status = read_bytes(); !status) return fail(std::move(status.error()));
    if (Status status = parse(); !status) return fail(std::move(status.error()));
    std::sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) {
      return std::tie(a.begin, a.end, a.tensor.name) < std::tie(b.begin, b.end, b.tensor.name);
    });
    if (Status status = check_offsets(); !status) return fail(std::move(status.error()));
    std::vector<TensorInfo> tensors;
    tensors.reserve(entries_.size());
    for (Entry& entry : entries_) {
      entry.tensor.offset = data_start() + entry.begin;
      entry.tensor.nbytes = entry.end - entry.begin;
      tensors.push_back(std::move(entry.tensor));
    }
    return tensors;
  }

 private:
  std::uint64_t data_start() const { return kLengthBytes + header_nbytes_; }

  tl::unexpected<Error> bad(std::string_view check, std::string_view what) const {
    return fail(Reason::corrupt, std::string(check) + ": " + printable(name_) + ": " + std::string(what));
  }

  /// For the checks that a file of another kind fails: says what it is where that can be told.
  tl::unexpected<Error> bad_frame(std::string_view check, const std::string& what) const {
    const std::optional<Disguise> disguise = disguise_of(fd_, file_nbytes_);
    if (!disguise) {
      return fail(Reason::corrupt, std::string(check) + ": " + printable(name_) + ": " + what,
                  "the file is no safetensors file, or only the beginning of one: download it again");
    }
    return fail(Reason::corrupt,
                std::string(check) + ": " + printable(name_) + " is " + std::string(disguise->what) + " (" +
                    what + ")",
                std::string(disguise->hint));
  }

  tl::unexpected<Error> bad_json(const std::string& what) const {
    return bad("InvalidHeaderDeserialization", what);
  }
  tl::unexpected<Error> bad_json(std::string_view tensor, std::string_view what) const {
    return bad("InvalidHeaderDeserialization", "tensor " + in_quotes(tensor) + ": " + std::string(what));
  }

  Status read_bytes();
  Status parse();
  Status parse_metadata(const dom::element& value);
  Result<Entry> parse_entry(std::string_view tensor, const dom::element& value) const;
  Status parse_shape(std::string_view tensor, const dom::element& value, Entry& entry) const;
  Status parse_offsets(std::string_view tensor, const dom::element& value, Entry& entry) const;
  Status check_names() const;
  Status check_offsets() const;
  Status check_size(const Entry& entry) const;

  int fd_;
  std::uint64_t file_nbytes_;
  std::string_view name_;
  std::uint64_t header_nbytes_ = 0;
  std::unique_ptr<char[]> header_;  ///< header_nbytes_ and simdjson's padding
  std::vector<Entry> entries_;
};

Status HeaderReader::read_bytes() {
  if (file_nbytes_ < kLengthBytes)
    return bad_frame("HeaderTooSmall",
                     "the file has " + std::to_string(file_nbytes_) + " bytes, fewer than 8");
  std::array<unsigned char, kLengthBytes> length{};
  if (Status status = read_exact(fd_, std::as_writable_bytes(std::span(length)), 0, printable(name_));
      !status)
    return status;
  for (std::size_t i = length.size(); i-- > 0;) header_nbytes_ = header_nbytes_ << 8 | length[i];
  const std::string says = "the header's length is given as " + std::to_string(header_nbytes_) + " bytes";
  if (header_nbytes_ > kLongestHeader) return bad_frame("HeaderTooLarge", says + ", more than 100000000");
  if (header_nbytes_ > file_nbytes_ - kLengthBytes)
    return bad_frame("InvalidHeaderLength", says + ", the file has " + std::to_string(file_nbytes_));
  const auto n = static_cast<std::size_t>(header_nbytes_);
  header_.reset(new char[n + simdjson::SIMDJSON_PADDING]);
  std::fill_n(header_.get() + n, simdjson::SIMDJSON_PADDING, ' ');
  return read_exact(fd_, std::as_writable_bytes(std::span(header_.get(), n)), kLengthBytes, printable(name_));
}

Status HeaderReader::parse() {
  const auto n = static_cast<std::size_t>(header_nbytes_);
  if (!simdjson::validate_utf8(header_.get(), n)) return bad("InvalidHeader", "the header is not UTF-8");
  // Newer simdjson skips a byte order mark; the format has none.
  if (n >= 3 && std::string_view(header_.get(), 3) == "\xef\xbb\xbf")
    return bad_json("the header begins with a byte order mark");
  dom::parser parser;
  dom::element root;
  if (const auto error = parser.parse(header_.get(), n, false).get(root))
    return bad_json(std::string("the header is not JSON: ") + simdjson::error_message(error));
  dom::object object;
  if (root.get_object().get(object)) return bad_json("the header is not a JSON object");
  bool metadata_seen = false;
  for (const auto& [key, value] : object) {
    if (key == kMetadata) {
      if (std::exchange(metadata_seen, true)) return bad_json("__metadata__ is there twice");
      if (Status status = parse_metadata(value); !status) return status;
      continue;
    }
    Result<Entry> entry = parse_entry(key, value);
    if (!entry) return fail(std::move(entry.error()));
    entries_.push_back(std::move(*entry));
  }
  return check_names();
}

Status HeaderReader::parse_metadata(const dom::element& value) {
  if (value.is_null()) return {};  // as the library reads it: none
  dom::object object;
  if (value.get_object().get(object)) return bad_json("__metadata__ is not an object");
  for (const auto& [key, text] : object)
    if (!text.is_string()) return bad_json("__metadata__ " + in_quotes(key) + " is not a string");
  return {};
}

Result<Entry> HeaderReader::parse_entry(std::string_view tensor, const dom::element& value) const {
  dom::object object;
  if (value.get_object().get(object)) return bad_json(tensor, "its entry is not an object");
  Entry entry;
  entry.tensor.name = tensor;
  bool dtype_seen = false, shape_seen = false, offsets_seen = false;
  for (const auto& [key, field] : object) {
    bool* seen = key == "dtype"          ? &dtype_seen
                 : key == "shape"        ? &shape_seen
                 : key == "data_offsets" ? &offsets_seen
                                         : nullptr;
    if (seen == nullptr) continue;  // unknown fields are the library's to ignore, and ours
    if (std::exchange(*seen, true)) return bad_json(tensor, std::string(key) + " is there twice");
    if (seen == &dtype_seen) {
      std::string_view word;
      if (field.get_string().get(word)) return bad_json(tensor, "dtype is not a string");
      const std::optional<unsigned> bits = bits_of(word);
      if (!bits) return bad_json(tensor, "unknown dtype " + in_quotes(word));
      entry.tensor.dtype = word;
      entry.bits = *bits;
    } else if (Status status = seen == &shape_seen ? parse_shape(tensor, field, entry)
                                                   : parse_offsets(tensor, field, entry);
               !status) {
      return fail(std::move(status.error()));
    }
  }
  if (!dtype_seen) return bad_json(tensor, "dtype is missing");
  if (!shape_seen) return bad_json(tensor, "shape is missing");
  if (!offsets_seen) return bad_json(tensor, "data_offsets is missing");
  return entry;
}

Status HeaderReader::parse_shape(std::string_view tensor, const dom::element& value, Entry& entry) const {
  dom::array numbers;
  if (value.get_array().get(numbers)) return bad_json(tensor, "shape is not an array");
  for (const dom::element& number : numbers) {
    std::uint64_t extent = 0;
    if (number.get_uint64().get(extent))
      return bad_json(tensor, "shape holds something that is no 64-bit unsigned integer");
    entry.tensor.shape.push_back(extent);
  }
  return {};
}

Status HeaderReader::parse_offsets(std::string_view tensor, const dom::element& value, Entry& entry) const {
  dom::array numbers;
  if (value.get_array().get(numbers)) return bad_json(tensor, "data_offsets is not an array");
  std::array<std::uint64_t, 2> offsets{};
  std::size_t count = 0;
  for (const dom::element& number : numbers) {
    if (count == offsets.size()) return bad_json(tensor, "data_offsets holds more than two numbers");
    if (number.get_uint64().get(offsets[count++]))
      return bad_json(tensor, "data_offsets holds something that is no 64-bit unsigned integer");
  }
  if (count < offsets.size()) return bad_json(tensor, "data_offsets holds fewer than two numbers");
  entry.begin = offsets[0];
  entry.end = offsets[1];
  return {};
}

Status HeaderReader::check_names() const {
  std::vector<std::string_view> names;
  names.reserve(entries_.size());
  for (const Entry& entry : entries_) names.push_back(entry.tensor.name);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice != names.end()) return bad_json(*twice, "the name is there twice");
  return {};
}

Status HeaderReader::check_offsets() const {
  std::uint64_t expected = 0;
  for (const Entry& entry : entries_) {
    if (entry.begin != expected || entry.end < entry.begin) {
      return bad("InvalidOffset", "tensor " + in_quotes(entry.tensor.name) + " has data_offsets [" +
                                      std::to_string(entry.begin) + ", " + std::to_string(entry.end) +
                                      ") where " + std::to_string(expected) +
                                      " is the end of the one before");
    }
    expected = entry.end;
    if (Status status = check_size(entry); !status) return status;
  }
  const std::uint64_t data_nbytes = file_nbytes_ - data_start();
  if (expected != data_nbytes) {
    const char* hint = expected > data_nbytes ? "the file was cut off: download it again"
                                              : "something follows the weights: download the file again";
    return fail(Reason::corrupt,
                "MetadataIncompleteBuffer: " + printable(name_) + ": the header describes " +
                    std::to_string(expected) + " bytes of data, the file holds " +
                    std::to_string(data_nbytes),
                hint);
  }
  return {};
}

Status HeaderReader::check_size(const Entry& entry) const {
  const std::string tensor = "tensor " + in_quotes(entry.tensor.name);
  std::uint64_t bits = 1;
  bool overflow = false;
  for (const std::uint64_t extent : entry.tensor.shape)
    overflow |= __builtin_mul_overflow(bits, extent, &bits);
  overflow |= __builtin_mul_overflow(bits, std::uint64_t{entry.bits}, &bits);
  if (overflow) return bad("ValidationOverflow", tensor + ": its shape has more than 2^64 bits");
  if (bits % 8 != 0)
    return bad("MisalignedSlice", tensor + ": " + std::to_string(bits) + " bits of " + entry.tensor.dtype +
                                      " are not whole bytes");
  if (bits / 8 != entry.end - entry.begin) {
    return bad("TensorInvalidInfo", tensor + ": dtype " + entry.tensor.dtype + " and shape give " +
                                        std::to_string(bits / 8) + " bytes, data_offsets give " +
                                        std::to_string(entry.end - entry.begin));
  }
  return {};
}

}  // namespace

Result<std::vector<TensorInfo>> read_safetensors_header(int fd, std::uint64_t file_nbytes,
                                                        std::string_view name) {
  return HeaderReader(fd, file_nbytes, name).read();
}

}  // namespace wcache

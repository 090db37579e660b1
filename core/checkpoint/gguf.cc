// The GGUF header, versions 2 and 3, little-endian: metadata (of which only general.alignment and
// general.architecture mean something here), then the tensor table, then, aligned, the data that the table's
// offsets count from. The checks are ggml's (gguf.cpp) where it has them; a hole between tensors is let pass.

#include <algorithm>
#include <array>
#include <optional>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "core/checkpoint/byte_cursor.h"
#include "core/checkpoint/checkpoint.h"
#include "core/checkpoint/disguise.h"
#include "core/checkpoint/ggml_types.h"
#include "core/checkpoint/text.h"
#include "core/format.h"

namespace wcache {
namespace {

constexpr std::uint64_t kMagic = 0x46554747;  // "GGUF"
constexpr std::uint64_t kLongestHeader = std::uint64_t{1} << 30;
constexpr std::uint64_t kMaxDimensions = 4;  // GGML_MAX_DIMS
constexpr int kMaxNesting = 4;
constexpr std::uint64_t kSmallestKey = 8 + 4 + 1;         // an empty name, a type, a byte
constexpr std::uint64_t kSmallestTensor = 8 + 4 + 4 + 8;  // an empty name, no dimension, a type, an offset

constexpr std::uint64_t kUint32 = 4;
constexpr std::uint64_t kString = 8;
constexpr std::uint64_t kArray = 9;
/// Bytes of each metadata type; 0 for string and array.
constexpr std::array<std::uint64_t, 13> kValueBytes{1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

class GgufReader {
 public:
  GgufReader(int fd, std::uint64_t file_nbytes, std::string_view name)
      : fd_(fd), file_nbytes_(file_nbytes), name_(name), in_(fd, file_nbytes, kLongestHeader, name) {}

  Result<GgufHeader> read();

 private:
  Status read_frame();
  void read_key();
  void skip_value(std::uint64_t type, int nesting);
  void skip_array(int nesting);
  Result<TensorInfo> read_tensor();
  Result<std::uint64_t> size_of(const TensorInfo& tensor, const GgmlType& type);
  Status place_tensors();

  std::string read_string(std::string_view what) { return in_.text(in_.number(8, what), what); }
  tl::unexpected<Error> bad(std::string_view check, const std::string& what) {
    in_.fail_with(check, what);
    return fail(in_.error());
  }
  tl::unexpected<Error> unsupported(const std::string& what, std::string hint) const {
    return fail(Reason::unsupported, printable(name_) + ": " + what, std::move(hint));
  }

  int fd_;
  std::uint64_t file_nbytes_;
  std::string_view name_;
  ByteCursor in_;
  std::uint64_t tensor_count_ = 0;
  std::uint64_t key_count_ = 0;
  std::uint64_t alignment_ = 32;
  std::unordered_set<std::string> names_;  ///< keys first, then tensors
  GgufHeader header_;
};

Result<GgufHeader> GgufReader::read() {
  if (Status status = read_frame(); !status) return fail(std::move(status.error()));
  for (std::uint64_t i = 0; i < key_count_ && in_.ok(); ++i) read_key();
  if (!in_.ok()) return fail(in_.error());
  names_.clear();
  for (std::uint64_t i = 0; i < tensor_count_; ++i) {
    Result<TensorInfo> tensor = read_tensor();
    if (!tensor) return fail(std::move(tensor.error()));
    header_.tensors.push_back(std::move(*tensor));
  }
  if (Status status = place_tensors(); !status) return fail(std::move(status.error()));
  return std::move(header_);
}

Status GgufReader::read_frame() {
  const std::uint64_t magic = in_.number(4, "the magic number");
  if (!in_.ok() || magic != kMagic) {
    const std::optional<Disguise> disguise = disguise_of(fd_, file_nbytes_);
    if (disguise)
      return fail(Reason::corrupt, "Magic: " + printable(name_) + " is " + std::string(disguise->what),
                  std::string(disguise->hint));
    return bad("Magic", "the file does not begin with GGUF");
  }
  const std::uint64_t version = in_.number(4, "the version");
  if (in_.ok() && version != 2 && version != 3) {
    if (version != 0 && (version & 0xffff) == 0)
      return unsupported("a big-endian GGUF file", "convert it to little-endian");
    return unsupported("GGUF version " + std::to_string(version) + "; versions 2 and 3 are known",
                       "convert it with today's llama.cpp");
  }
  tensor_count_ = in_.number(8, "the number of tensors");
  key_count_ = in_.number(8, "the number of keys");
  if (!in_.ok()) return fail(in_.error());
  if (key_count_ > in_.remaining() / kSmallestKey)
    return bad("Count", std::to_string(key_count_) + " keys cannot be in a file of " +
                            std::to_string(file_nbytes_) + " bytes");
  if (tensor_count_ > in_.remaining() / kSmallestTensor)
    return bad("Count", std::to_string(tensor_count_) + " tensors cannot be in a file of " +
                            std::to_string(file_nbytes_) + " bytes");
  return {};
}

void GgufReader::read_key() {
  const std::string key = read_string("a key's name");
  const std::uint64_t type = in_.number(4, "a key's type");
  if (!in_.ok()) return;
  if (!names_.insert(key).second)
    return in_.fail_with("DuplicateKey", "key " + in_quotes(key) + " is there twice");
  if (key == "general.architecture" && type == kString) {
    header_.architecture = read_string(key);
  } else if (key == "general.alignment") {
    if (type != kUint32) return in_.fail_with("Alignment", "general.alignment is no 32-bit unsigned integer");
    alignment_ = in_.number(4, key);
    if (in_.ok() && (alignment_ == 0 || (alignment_ & (alignment_ - 1)) != 0))
      in_.fail_with("Alignment", "general.alignment is " + std::to_string(alignment_) + ", no power of two");
  } else {
    skip_value(type, 0);
  }
}

void GgufReader::skip_value(std::uint64_t type, int nesting) {
  if (type >= kValueBytes.size())
    return in_.fail_with("KeyType", "there is no metadata type " + std::to_string(type) + " (byte " +
                                        std::to_string(in_.at()) + ")");
  if (type == kArray) return skip_array(nesting);
  if (type == kString) return in_.skip(in_.number(8, "a metadata string"), "a metadata string");
  in_.skip(kValueBytes[type], "a metadata value");
}

void GgufReader::skip_array(int nesting) {
  if (nesting >= kMaxNesting)
    return in_.fail_with("Nesting", "metadata arrays are nested deeper than " + std::to_string(kMaxNesting));
  const std::uint64_t type = in_.number(4, "an array's type");
  const std::uint64_t count = in_.number(8, "an array's length");
  if (!in_.ok()) return;
  const std::uint64_t fixed = type < kValueBytes.size() ? kValueBytes[type] : 0;
  const std::uint64_t smallest = fixed > 0 ? fixed : type == kString ? 8 : 12;
  if (count > in_.remaining() / smallest)
    return in_.fail_with("Count", "a metadata array of " + std::to_string(count) + " elements at byte " +
                                      std::to_string(in_.at()) + " does not fit the file");
  if (fixed > 0) return in_.skip(count * fixed, "a metadata array");
  for (std::uint64_t i = 0; i < count && in_.ok(); ++i) skip_value(type, nesting + 1);
}

Result<TensorInfo> GgufReader::read_tensor() {
  TensorInfo tensor;
  tensor.name = read_string("a tensor's name");
  const std::uint64_t dimensions = in_.number(4, "a tensor's number of dimensions");
  if (in_.ok() && dimensions > kMaxDimensions)
    return bad("Dimensions", "tensor " + in_quotes(tensor.name) + " has " + std::to_string(dimensions) +
                                 " dimensions, more than 4");
  for (std::uint64_t i = 0; i < dimensions && in_.ok(); ++i)
    tensor.shape.push_back(in_.number(8, "a tensor's shape"));
  const auto id = static_cast<std::uint32_t>(in_.number(4, "a tensor's type"));
  tensor.offset = in_.number(8, "a tensor's offset");
  if (!in_.ok()) return fail(in_.error());
  if (!names_.insert(tensor.name).second)
    return bad("DuplicateTensor", "tensor " + in_quotes(tensor.name) + " is there twice");
  const std::optional<GgmlType> type = ggml_type(id);
  if (!type) {
    return unsupported(
        "tensor " + in_quotes(tensor.name) + " has ggml type " + std::to_string(id) + ", which is not known",
        "a type that ggml has removed, or added after this version of wcache");
  }
  Result<std::uint64_t> nbytes = size_of(tensor, *type);
  if (!nbytes) return fail(std::move(nbytes.error()));
  tensor.nbytes = *nbytes;
  tensor.dtype = type->name;
  std::reverse(tensor.shape.begin(), tensor.shape.end());
  return tensor;
}

/// Bytes of a tensor whose shape is still in ggml's order, innermost first.
Result<std::uint64_t> GgufReader::size_of(const TensorInfo& tensor, const GgmlType& type) {
  constexpr std::uint64_t kLargest = INT64_MAX;  // ggml's counts are signed
  std::uint64_t elements = 1;
  std::uint64_t nbytes = 0;
  bool overflow = false;
  for (const std::uint64_t extent : tensor.shape) {
    overflow |=
        extent > kLargest || __builtin_mul_overflow(elements, extent, &elements) || elements > kLargest;
  }
  overflow |= __builtin_mul_overflow(elements / type.block, std::uint64_t{type.nbytes}, &nbytes);
  if (overflow)
    return bad("TensorOverflow", "tensor " + in_quotes(tensor.name) + ": its shape passes 64 bits");
  const std::uint64_t row = tensor.shape.empty() ? 1 : tensor.shape.front();
  if (row % type.block != 0) {
    return bad("TensorBlocks", "tensor " + in_quotes(tensor.name) + ": rows of " + std::to_string(row) +
                                   " elements are not whole blocks of " + std::to_string(type.block) + " (" +
                                   std::string(type.name) + ")");
  }
  return nbytes;
}

/// Makes offsets count from the start of the file, and checks that each tensor lies in it, apart from the
/// others.
Status GgufReader::place_tensors() {
  const std::uint64_t padding = (alignment_ - in_.at() % alignment_) % alignment_;
  const std::uint64_t data = in_.at() + padding;
  const std::uint64_t data_nbytes = data < file_nbytes_ ? file_nbytes_ - data : 0;
  std::vector<TensorInfo>& tensors = header_.tensors;
  for (TensorInfo& tensor : tensors) {
    const std::string which =
        "tensor " + in_quotes(tensor.name) + " at offset " + std::to_string(tensor.offset);
    if (tensor.offset % alignment_ != 0)
      return bad("TensorOffset", which + " is not aligned to " + std::to_string(alignment_));
    if (tensor.offset > data_nbytes || tensor.nbytes > data_nbytes - tensor.offset) {
      return bad("TensorBounds", which + " has " + std::to_string(tensor.nbytes) + " bytes, the file holds " +
                                     std::to_string(data_nbytes) + " bytes of data");
    }
    tensor.offset += data;
  }
  std::sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::tie(a.offset, a.nbytes, a.name) < std::tie(b.offset, b.nbytes, b.name);
  });
  std::uint64_t end = 0;
  for (const TensorInfo& tensor : tensors) {
    if (tensor.offset < end)
      return bad("TensorOverlap", "tensor " + in_quotes(tensor.name) + " begins within the one before");
    end = tensor.offset + tensor.nbytes;
  }
  return {};
}

}  // namespace

Result<GgufHeader> read_gguf_header(int fd, std::uint64_t file_nbytes, std::string_view name) {
  return GgufReader(fd, file_nbytes, name).read();
}

}  // namespace wcache

#include "core/manifest.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

#include "core/manifest_generated.h"

namespace wcache {
namespace {

static_assert(std::endian::native == std::endian::little, "shapes are read in place");

// Rows of structs, shapes: what FlatBuffers aligns to 8 bytes when it writes and does not check when it
// verifies.
constexpr std::size_t kAlignment = 8;
// FlatBuffers' own offsets are 31 bits.
constexpr std::uint64_t kMaxNbytes = (std::uint64_t{1} << 31) - 1;
// Room for what is neither rows, names nor shapes.
constexpr std::uint64_t kFrameNbytes = std::uint64_t{1} << 20;

wire::Digest128 to_wire(const Digest& digest) {
  return {digest.high, digest.low};
}
Digest from_wire(const wire::Digest128& digest) {
  return {digest.high(), digest.low()};
}

const wire::Manifest& root_of(std::span<const std::byte> bytes) {
  return *wire::GetManifest(bytes.data());
}

std::string_view text_of(const flatbuffers::String* text) {
  return text == nullptr ? std::string_view() : std::string_view(text->c_str(), text->size());
}

template <class Vector>
std::size_t size_of(const Vector* vector) {
  return vector == nullptr ? 0 : vector->size();
}

template <class Vector>
bool aligned(const Vector* vector) {
  return size_of(vector) == 0 || reinterpret_cast<std::uintptr_t>(vector->Data()) % kAlignment == 0;
}

/// A name in the block of names; nullopt when it points outside.
std::optional<std::string_view> name_at(const wire::Manifest& root, std::uint64_t offset,
                                        std::uint32_t nbytes) {
  const std::size_t size = size_of(root.names());
  if (offset > size || nbytes > size - offset) return std::nullopt;
  if (nbytes == 0) return std::string_view();
  return std::string_view(reinterpret_cast<const char*>(root.names()->Data()) + offset, nbytes);
}

/// Binary search of rows sorted by name. A row whose name points outside ends it: the table is not what it
/// claims.
template <class Rows>
std::optional<std::size_t> find_row(const wire::Manifest& root, const Rows* rows, std::string_view name) {
  std::size_t low = 0;
  std::size_t high = size_of(rows);
  while (low < high) {
    const std::size_t middle = low + (high - low) / 2;
    const auto* row = rows->Get(static_cast<flatbuffers::uoffset_t>(middle));
    const std::optional<std::string_view> found = name_at(root, row->name_offset(), row->name_nbytes());
    if (!found) return std::nullopt;
    if (*found == name) return middle;
    if (*found < name)
      low = middle + 1;
    else
      high = middle;
  }
  return std::nullopt;
}

/// Which tensor of which image, in the order of the rows.
struct TensorRef {
  std::uint32_t image;
  std::uint32_t tensor;
};

std::vector<TensorRef> tensors_by_name(const EntryPlan& plan) {
  std::vector<TensorRef> refs;
  refs.reserve(plan.tensor_count());
  for (std::uint32_t i = 0; i < plan.images.size(); ++i)
    for (std::uint32_t t = 0; t < plan.images[i].tensors.size(); ++t) refs.push_back({i, t});
  std::sort(refs.begin(), refs.end(), [&](const TensorRef& a, const TensorRef& b) {
    const int order =
        plan.images[a.image].tensors[a.tensor].name.compare(plan.images[b.image].tensors[b.tensor].name);
    return order != 0 ? order < 0 : std::pair(a.image, a.tensor) < std::pair(b.image, b.tensor);
  });
  return refs;
}

/// What of a plan is not rows: distinct dtypes, and the sizes of the shared blocks.
struct Blocks {
  std::vector<std::string> dtypes;
  std::uint64_t names_nbytes = 0;
  std::uint64_t shapes = 0;

  std::uint64_t total_nbytes(const EntryPlan& plan) const {
    return kFrameNbytes + plan.images.size() * sizeof(wire::FileRow) +
           plan.tensor_count() * sizeof(wire::TensorRow) + names_nbytes + shapes * sizeof(std::uint64_t);
  }
};

Result<Blocks> blocks_of(const EntryPlan& plan) {
  Blocks blocks;
  constexpr std::size_t kMaxShort = std::numeric_limits<std::uint16_t>::max();
  for (const ImagePlan& image : plan.images) {
    blocks.names_nbytes += image.name.size();
    for (const TensorInfo& tensor : image.tensors) {
      blocks.names_nbytes += tensor.name.size();
      blocks.shapes += tensor.shape.size();
      if (tensor.shape.size() > kMaxShort)
        return fail(Reason::unsupported, image.name + ": tensor '" + tensor.name + "' has " +
                                             std::to_string(tensor.shape.size()) +
                                             " dimensions, more than 65535");
      const auto at = std::lower_bound(blocks.dtypes.begin(), blocks.dtypes.end(), tensor.dtype);
      if (at == blocks.dtypes.end() || *at != tensor.dtype) blocks.dtypes.insert(at, tensor.dtype);
    }
  }
  if (blocks.dtypes.size() > kMaxShort)
    return fail(Reason::unsupported, plan.name + " has tensors of more than 65535 different dtypes");
  if (blocks.total_nbytes(plan) > kMaxNbytes)
    return fail(Reason::unsupported, "the tensor table of " + plan.name + " would be " +
                                         std::to_string(blocks.total_nbytes(plan)) +
                                         " bytes, more than 2 GiB");
  return blocks;
}

Status check_belongs(const EntryPlan& plan, std::span<const ImageDigests> digests) {
  if (digests.size() != plan.images.size())
    return fail(Reason::internal, std::to_string(digests.size()) + " image digests for " +
                                      std::to_string(plan.images.size()) + " images");
  for (std::size_t i = 0; i < digests.size(); ++i) {
    const ImagePlan& image = plan.images[i];
    if (digests[i].segments.size() != image.segments.size())
      return fail(Reason::internal, image.name + ": " + std::to_string(digests[i].segments.size()) +
                                        " segment digests for " + std::to_string(image.segments.size()) +
                                        " segments");
    if (i > 0 && !(plan.images[i - 1].name < image.name))
      return fail(Reason::internal, "the images of a plan are not sorted by name at " + image.name);
  }
  return {};
}

/// The segment that a tensor of some bytes is.
std::optional<std::size_t> segment_of(const ImagePlan& image, const TensorInfo& tensor) {
  const auto at = std::lower_bound(image.segments.begin(), image.segments.end(), tensor.offset,
                                   [](const Segment& s, std::uint64_t offset) { return s.offset < offset; });
  if (at == image.segments.end() || *at != Segment{tensor.offset, tensor.nbytes}) return std::nullopt;
  return static_cast<std::size_t>(at - image.segments.begin());
}

/// A tensor's digest is that of its segment. An empty tensor has none of its own.
Result<Digest> tensor_digest(const ImagePlan& image, const ImageDigests& digests, const TensorInfo& tensor) {
  if (tensor.nbytes == 0) return combine_blocks({}, 0);
  const std::optional<std::size_t> segment = segment_of(image, tensor);
  if (!segment)
    return fail(Reason::internal, image.name + ": tensor '" + tensor.name + "' is no segment of the plan");
  return digests.segments[*segment];
}

/// Writes the big tables. Names and shapes are laid out in the order of the rows: files, then tensors.
class TableWriter {
 public:
  TableWriter(const EntryPlan& plan, std::span<const ImageDigests> digests, const Blocks& blocks)
      : plan_(plan), digests_(digests), blocks_(blocks), builder_(blocks.total_nbytes(plan)) {}

  Result<std::vector<std::byte>> write(const Fingerprint& fingerprint, const Placement& placement,
                                       const std::optional<GroupPlace>& place, const SlabPlan* slabs) {
    const std::vector<TensorRef> refs = tensors_by_name(plan_);
    const auto names = write_names(refs);
    const auto shapes = write_shapes(refs);
    const auto files = write_files();
    const auto tensors = write_tensors(refs, slabs);
    if (!tensors) return fail(tensors.error());
    const auto dtypes = builder_.CreateVectorOfStrings(blocks_.dtypes);
    const auto left_out = write_left_out();
    const auto others = write_others(place);
    const auto slab_sizes = builder_.CreateVector(slabs ? slabs->slabs : std::vector<std::uint64_t>());
    const auto text = [&](std::string_view value) {
      return builder_.CreateString(value.data(), value.size());
    };
    const wire::Digest128 key = to_wire(fingerprint.digest);
    const auto root = wire::CreateManifest(
        builder_, text(to_string(plan_.role)), text(to_string(plan_.layout)), &key, plan_.rank, plan_.tp_size,
        text(plan_.name), text(plan_.source), text(plan_.architecture), text(plan_.dtype),
        text(plan_.quantization), text(placement.tier), text(placement.device_uuid), text(placement.ipc_kind),
        files, *tensors, names, shapes, dtypes, left_out, place ? place->node_ranks : 1, others, slab_sizes);
    wire::FinishManifestBuffer(builder_, root);
    const auto bytes = std::as_bytes(std::span(builder_.GetBufferPointer(), builder_.GetSize()));
    return std::vector<std::byte>(bytes.begin(), bytes.end());
  }

 private:
  const TensorInfo& tensor_of(const TensorRef& ref) const {
    return plan_.images[ref.image].tensors[ref.tensor];
  }

  /// In host memory a slab is the file. An empty tensor is at the begin of the first slab.
  SlabPlace place_of(const TensorRef& ref, const SlabPlan* slabs) const {
    const TensorInfo& tensor = tensor_of(ref);
    if (slabs == nullptr) return {ref.image, tensor.offset};
    if (tensor.nbytes == 0) return {};
    return slabs->images[ref.image][*segment_of(plan_.images[ref.image], tensor)];
  }

  flatbuffers::Offset<flatbuffers::Vector<std::uint8_t>> write_names(std::span<const TensorRef> refs) {
    std::uint8_t* out = nullptr;
    const auto vector = builder_.CreateUninitializedVector<std::uint8_t>(blocks_.names_nbytes, &out);
    for (const ImagePlan& image : plan_.images) out = std::copy(image.name.begin(), image.name.end(), out);
    for (const TensorRef& ref : refs) {
      const std::string& name = tensor_of(ref).name;
      out = std::copy(name.begin(), name.end(), out);
    }
    return vector;
  }

  flatbuffers::Offset<flatbuffers::Vector<std::uint64_t>> write_shapes(std::span<const TensorRef> refs) {
    std::uint64_t* out = nullptr;
    const auto vector = builder_.CreateUninitializedVector<std::uint64_t>(blocks_.shapes, &out);
    for (const TensorRef& ref : refs)
      out = std::copy(tensor_of(ref).shape.begin(), tensor_of(ref).shape.end(), out);
    return vector;
  }

  flatbuffers::Offset<flatbuffers::Vector<const wire::FileRow*>> write_files() {
    std::vector<wire::FileRow> rows;
    rows.reserve(plan_.images.size());
    for (std::size_t i = 0; i < plan_.images.size(); ++i) {
      const ImagePlan& image = plan_.images[i];
      rows.emplace_back(to_wire(digests_[i].file), image.nbytes, image.mtime_ns, name_offset_,
                        static_cast<std::uint32_t>(image.name.size()),
                        static_cast<std::uint32_t>(image.tensors.size()),
                        static_cast<std::uint8_t>(image.kind));
      name_offset_ += image.name.size();
    }
    return builder_.CreateVectorOfStructs(rows);
  }

  Result<flatbuffers::Offset<flatbuffers::Vector<const wire::TensorRow*>>> write_tensors(
      std::span<const TensorRef> refs, const SlabPlan* slabs) {
    wire::TensorRow* out = nullptr;
    const auto vector = builder_.CreateUninitializedVectorOfStructs<wire::TensorRow>(refs.size(), &out);
    std::uint32_t shape_offset = 0;
    for (const TensorRef& ref : refs) {
      const TensorInfo& tensor = tensor_of(ref);
      const Result<Digest> digest = tensor_digest(plan_.images[ref.image], digests_[ref.image], tensor);
      if (!digest) return fail(digest.error());
      const auto dtype = std::lower_bound(blocks_.dtypes.begin(), blocks_.dtypes.end(), tensor.dtype);
      const SlabPlace place = place_of(ref, slabs);
      *out++ = wire::TensorRow(to_wire(*digest), tensor.nbytes, tensor.offset, place.offset, name_offset_,
                               static_cast<std::uint32_t>(tensor.name.size()), shape_offset, ref.image,
                               place.slab, static_cast<std::uint16_t>(dtype - blocks_.dtypes.begin()),
                               static_cast<std::uint16_t>(tensor.shape.size()));
      name_offset_ += tensor.name.size();
      shape_offset += static_cast<std::uint32_t>(tensor.shape.size());
    }
    return vector;
  }

  flatbuffers::Offset<flatbuffers::Vector<flatbuffers::Offset<wire::LeftOutRow>>> write_left_out() {
    std::vector<flatbuffers::Offset<wire::LeftOutRow>> rows;
    rows.reserve(plan_.left_out.size());
    for (const LeftOut& left_out : plan_.left_out)
      rows.push_back(wire::CreateLeftOutRow(builder_, builder_.CreateString(left_out.name),
                                            builder_.CreateString(left_out.why)));
    return builder_.CreateVector(rows);
  }

  /// The group's files that are not this rank's own.
  flatbuffers::Offset<flatbuffers::Vector<flatbuffers::Offset<wire::OtherFile>>> write_others(
      const std::optional<GroupPlace>& place) {
    std::vector<flatbuffers::Offset<wire::OtherFile>> rows;
    if (!place) return builder_.CreateVector(rows);
    for (const Key::File& file : place->key.files) {
      const bool own = std::any_of(plan_.images.begin(), plan_.images.end(),
                                   [&](const ImagePlan& image) { return image.name == file.name; });
      const wire::Digest128 digest = to_wire(file.digest);
      if (!own)
        rows.push_back(
            wire::CreateOtherFile(builder_, builder_.CreateString(file.name), file.nbytes, &digest));
    }
    return builder_.CreateVector(rows);
  }

  const EntryPlan& plan_;
  std::span<const ImageDigests> digests_;
  const Blocks& blocks_;
  flatbuffers::FlatBufferBuilder builder_;
  std::uint64_t name_offset_ = 0;
};

}  // namespace

Key key_of(const EntryPlan& plan, std::span<const ImageDigests> digests) {
  Key key;
  key.role = plan.role;
  key.layout = plan.layout;
  key.tp_size = plan.tp_size;
  key.files.reserve(plan.images.size());
  for (std::size_t i = 0; i < plan.images.size(); ++i)
    key.files.push_back({plan.images[i].name, plan.images[i].nbytes, digests[i].file});
  std::sort(key.files.begin(), key.files.end(),
            [](const Key::File& a, const Key::File& b) { return a.name < b.name; });
  return key;
}

Result<std::vector<std::byte>> build_manifest(const EntryPlan& plan, std::span<const ImageDigests> digests,
                                              const Fingerprint& fingerprint, const Placement& placement,
                                              const std::optional<GroupPlace>& place, const SlabPlan* slabs) {
  if (Status belongs = check_belongs(plan, digests); !belongs) return fail(belongs.error());
  const Result<Blocks> blocks = blocks_of(plan);
  if (!blocks) return fail(blocks.error());
  return TableWriter(plan, digests, *blocks).write(fingerprint, placement, place, slabs);
}

Result<ManifestView> ManifestView::open(std::span<const std::byte> bytes) {
  const auto corrupt = [](std::string what) {
    return fail(Reason::corrupt, "the manifest " + std::move(what));
  };
  if (bytes.size() >= kMaxNbytes)
    return corrupt("is " + std::to_string(bytes.size()) + " bytes, more than 2 GiB");
  if (reinterpret_cast<std::uintptr_t>(bytes.data()) % kAlignment != 0)
    return corrupt("is not aligned to 8 bytes");
  // Vectors of structs are checked as a whole, one comparison each; only dtypes, left_out and others are
  // walked.
  flatbuffers::Verifier verifier(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
  if (bytes.size() < kAlignment || !wire::VerifyManifestBuffer(verifier))
    return corrupt("does not verify: it is damaged or of another version");
  const wire::Manifest& root = root_of(bytes);
  if (!aligned(root.files()) || !aligned(root.tensors()) || !aligned(root.shapes()) || !aligned(root.slabs()))
    return corrupt("has tables that are not aligned to 8 bytes");
  return ManifestView(bytes);
}

std::string_view ManifestView::role() const {
  return text_of(root_of(bytes_).role());
}
std::string_view ManifestView::layout() const {
  return text_of(root_of(bytes_).layout());
}
std::uint32_t ManifestView::rank() const {
  return root_of(bytes_).rank();
}
std::uint32_t ManifestView::tp_size() const {
  return root_of(bytes_).tp_size();
}
std::string_view ManifestView::name() const {
  return text_of(root_of(bytes_).name());
}
std::string_view ManifestView::source() const {
  return text_of(root_of(bytes_).source());
}
std::string_view ManifestView::architecture() const {
  return text_of(root_of(bytes_).architecture());
}
std::string_view ManifestView::dtype() const {
  return text_of(root_of(bytes_).dtype());
}
std::string_view ManifestView::quantization() const {
  return text_of(root_of(bytes_).quantization());
}

Fingerprint ManifestView::fingerprint() const {
  const wire::Digest128* digest = root_of(bytes_).fingerprint();
  return digest == nullptr ? Fingerprint{} : Fingerprint{from_wire(*digest)};
}

Placement ManifestView::placement() const {
  const wire::Manifest& root = root_of(bytes_);
  return {std::string(text_of(root.tier())), std::string(text_of(root.device_uuid())),
          std::string(text_of(root.ipc_kind()))};
}

std::size_t ManifestView::file_count() const {
  return size_of(root_of(bytes_).files());
}

std::optional<ManifestView::File> ManifestView::file(std::size_t row) const {
  if (row >= file_count()) return std::nullopt;
  const wire::Manifest& root = root_of(bytes_);
  const wire::FileRow& wire = *root.files()->Get(static_cast<flatbuffers::uoffset_t>(row));
  const std::optional<std::string_view> name = name_at(root, wire.name_offset(), wire.name_nbytes());
  if (!name || wire.kind() > static_cast<std::uint8_t>(FileKind::opaque)) return std::nullopt;
  return File{*name,          static_cast<FileKind>(wire.kind()),
              wire.nbytes(),  wire.mtime_ns(),
              wire.tensors(), from_wire(wire.digest())};
}

std::optional<std::size_t> ManifestView::find_file(std::string_view name) const {
  const wire::Manifest& root = root_of(bytes_);
  return find_row(root, root.files(), name);
}

std::size_t ManifestView::slab_count() const {
  return size_of(root_of(bytes_).slabs());
}

std::uint64_t ManifestView::slab_nbytes(std::size_t slab) const {
  if (slab >= slab_count()) return 0;
  return root_of(bytes_).slabs()->Get(static_cast<flatbuffers::uoffset_t>(slab));
}

bool ManifestView::on_device(const File& file) const {
  return is_weights(file.kind) && text_of(root_of(bytes_).tier()) == "cuda";
}

std::size_t ManifestView::tensor_count() const {
  return size_of(root_of(bytes_).tensors());
}

std::optional<ManifestView::Tensor> ManifestView::tensor(std::size_t row) const {
  if (row >= tensor_count()) return std::nullopt;
  const wire::Manifest& root = root_of(bytes_);
  const wire::TensorRow& wire = *root.tensors()->Get(static_cast<flatbuffers::uoffset_t>(row));
  const std::optional<std::string_view> name = name_at(root, wire.name_offset(), wire.name_nbytes());
  const std::optional<File> in = file(wire.file());
  const std::size_t shapes = size_of(root.shapes());
  if (!name || !in || wire.offset() > in->nbytes || wire.nbytes() > in->nbytes - wire.offset())
    return std::nullopt;
  if (wire.shape_offset() > shapes || wire.ndim() > shapes - wire.shape_offset()) return std::nullopt;
  if (wire.dtype() >= size_of(root.dtypes())) return std::nullopt;
  if (const std::size_t slabs = slab_count(); slabs > 0 && wire.nbytes() > 0) {
    const std::uint64_t room = slab_nbytes(wire.slab());
    if (wire.slab_offset() > room || wire.nbytes() > room - wire.slab_offset()) return std::nullopt;
  }

  Tensor tensor;
  tensor.name = *name;
  tensor.dtype = text_of(root.dtypes()->Get(wire.dtype()));
  if (wire.ndim() > 0) {
    const auto* first = reinterpret_cast<const std::uint64_t*>(root.shapes()->Data());
    tensor.shape = std::span(first + wire.shape_offset(), wire.ndim());
  }
  tensor.file = wire.file();
  tensor.offset = wire.offset();
  tensor.nbytes = wire.nbytes();
  tensor.slab = wire.slab();
  tensor.slab_offset = wire.slab_offset();
  tensor.digest = from_wire(wire.digest());
  return tensor;
}

std::optional<std::size_t> ManifestView::find_tensor(std::string_view name) const {
  const wire::Manifest& root = root_of(bytes_);
  return find_row(root, root.tensors(), name);
}

std::vector<LeftOut> ManifestView::left_out() const {
  std::vector<LeftOut> out;
  const auto* rows = root_of(bytes_).left_out();
  for (std::size_t i = 0; i < size_of(rows); ++i) {
    const wire::LeftOutRow* row = rows->Get(static_cast<flatbuffers::uoffset_t>(i));
    out.push_back({std::string(text_of(row->name())), std::string(text_of(row->why()))});
  }
  return out;
}

std::uint32_t ManifestView::node_ranks() const {
  return std::max(1U, root_of(bytes_).node_ranks());
}

std::vector<Key::File> ManifestView::others() const {
  std::vector<Key::File> out;
  const auto* rows = root_of(bytes_).others();
  for (std::size_t i = 0; i < size_of(rows); ++i) {
    const wire::OtherFile* row = rows->Get(static_cast<flatbuffers::uoffset_t>(i));
    if (row->digest() == nullptr) continue;
    out.push_back({std::string(text_of(row->name())), row->nbytes(), from_wire(*row->digest())});
  }
  return out;
}

std::uint64_t ManifestView::nbytes() const {
  std::uint64_t sum = 0;
  for (std::size_t row = 0; row < file_count(); ++row)
    if (const std::optional<File> found = file(row)) sum += found->nbytes;
  return sum;
}

}  // namespace wcache

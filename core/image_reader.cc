#include "core/image_reader.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "core/source_state.h"

namespace wcache {

Status ImageReader::read(const ImagePlan& image, std::uint64_t offset, std::span<std::byte> out) {
  if (offset < image.head.size()) {
    const std::size_t n = std::min<std::uint64_t>(out.size(), image.head.size() - offset);
    std::memcpy(out.data(), image.head.data() + offset, n);
    offset += n;
    out = out.subspan(n);
  }
  auto piece = std::upper_bound(image.pieces.begin(), image.pieces.end(), offset,
                                [](std::uint64_t at, const Piece& p) { return at < p.image_offset; });
  if (piece != image.pieces.begin()) --piece;
  for (; !out.empty(); ++piece) {
    if (piece == image.pieces.end() || offset < piece->image_offset ||
        offset - piece->image_offset >= piece->nbytes)
      return fail(Reason::internal, image.name + ": byte " + std::to_string(offset) + " comes from nowhere");
    const std::uint64_t skip = offset - piece->image_offset;
    const std::size_t n = std::min<std::uint64_t>(out.size(), piece->nbytes - skip);
    if (Status done = read_piece(*piece, skip, out.first(n)); !done) return done;
    offset += n;
    out = out.subspan(n);
  }
  return {};
}

Status ImageReader::read_piece(const Piece& piece, std::uint64_t skip, std::span<std::byte> out) {
  const SourceFile& source = plan_.sources[piece.source];
  if (open_ != piece.source) {
    open_ = kNone;
    Result<Fd> fd = open_source(source);
    if (!fd) return fail(fd.error());
    fd_ = std::move(*fd);
    open_ = piece.source;
  }
  const std::uint64_t begin = piece.source_offset + skip;
  Status done = read_exact(fd_.get(), out, begin, source.path.string());
  // A file that ends early has changed, and saying so is of more use.
  if (Status same = check_source(fd_.get(), source, begin); !same) return same;
  return done;
}

}  // namespace wcache

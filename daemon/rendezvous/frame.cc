#include "daemon/rendezvous/frame.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "daemon/rendezvous/rendezvous_generated.h"

namespace wcache::rendezvous {
namespace {

namespace fbs = wcache::wire::rendezvous;
constexpr std::size_t kLengthWord = 4;
constexpr std::size_t kReadAtOnce = std::size_t{64} << 10;

std::string text(const flatbuffers::String* value) {
  return value == nullptr ? std::string() : value->str();
}

struct Builder {
  flatbuffers::FlatBufferBuilder fbb;

  std::pair<fbs::Body, flatbuffers::Offset<void>> operator()(const Join& j) {
    return {fbs::Body::Join, fbs::CreateJoinDirect(fbb, j.token.c_str(), j.version, j.node_rank, j.nnodes,
                                                   j.role.c_str(), j.label.c_str())
                                 .Union()};
  }
  std::pair<fbs::Body, flatbuffers::Offset<void>> operator()(const Part& part) {
    std::vector<flatbuffers::Offset<fbs::File>> files;
    for (const Key::File& file : part.key.files)
      files.push_back(
          fbs::CreateFileDirect(fbb, file.name.c_str(), file.nbytes, file.digest.high, file.digest.low));
    return {fbs::Body::Part,
            fbs::CreatePartDirect(fbb, std::string(to_string(part.key.role)).c_str(),
                                  std::string(to_string(part.key.layout)).c_str(), part.key.tp_size, &files)
                .Union()};
  }
  std::pair<fbs::Body, flatbuffers::Offset<void>> operator()(const NodeReady&) {
    return {fbs::Body::NodeReady, fbs::CreateNodeReady(fbb).Union()};
  }
  std::pair<fbs::Body, flatbuffers::Offset<void>> operator()(const AllReady&) {
    return {fbs::Body::AllReady, fbs::CreateAllReady(fbb).Union()};
  }
  std::pair<fbs::Body, flatbuffers::Offset<void>> operator()(const Alive&) {
    return {fbs::Body::Alive, fbs::CreateAlive(fbb).Union()};
  }
  std::pair<fbs::Body, flatbuffers::Offset<void>> operator()(const Failed& failed) {
    return {fbs::Body::Failed,
            fbs::CreateFailedDirect(fbb, failed.label.c_str(),
                                    std::string(to_string(failed.error.reason)).c_str(),
                                    failed.error.message.c_str(), failed.error.hint.c_str())
                .Union()};
  }
};

Result<Frame> read_part(const fbs::Part& part) {
  Part out;
  const Result<Role> role = role_from_string(text(part.role()));
  if (!role) return tl::unexpected(role.error());
  out.key.role = *role;
  const Result<Layout> layout = layout_from_string(text(part.layout()));
  if (!layout) return tl::unexpected(layout.error());
  out.key.layout = *layout;
  out.key.tp_size = part.tp_size();
  if (part.files() != nullptr)
    for (const fbs::File* file : *part.files())
      out.key.files.push_back({text(file->name()), file->nbytes(), Digest{file->high(), file->low()}});
  return Frame(std::move(out));
}

}  // namespace

std::vector<std::byte> encode(const Frame& frame) {
  Builder builder;
  const auto [type, body] = std::visit(builder, frame);
  builder.fbb.Finish(fbs::CreateFrame(builder.fbb, type, body), fbs::FrameIdentifier());
  const std::size_t nbytes = builder.fbb.GetSize();
  std::vector<std::byte> out(kLengthWord + nbytes);
  for (std::size_t i = 0; i < kLengthWord; ++i) out[i] = static_cast<std::byte>(nbytes >> (8 * i) & 0xff);
  std::memcpy(out.data() + kLengthWord, builder.fbb.GetBufferPointer(), nbytes);
  return out;
}

Result<Frame> decode(std::span<const std::byte> bytes) {
  const auto* data = reinterpret_cast<const std::uint8_t*>(bytes.data());
  flatbuffers::Verifier verifier(data, bytes.size(), /*max_depth=*/8, /*max_tables=*/200'000);
  if (bytes.size() < 8 || !fbs::FrameBufferHasIdentifier(data))
    return fail(Reason::version, "a frame of another protocol",
                "run the same version of wcache on every node");
  if (!fbs::VerifyFrameBuffer(verifier)) return fail(Reason::corrupt, "a malformed frame");
  const fbs::Frame* frame = fbs::GetFrame(data);
  if (frame->body() == nullptr)
    return fail(Reason::corrupt, "a frame without a body");  // the verifier lets it pass
  switch (frame->body_type()) {
    case fbs::Body::Join: {
      const fbs::Join* j = frame->body_as_Join();
      return Frame(Join{text(j->token()), j->version(), j->node_rank(), j->nnodes(), text(j->role()),
                        text(j->label())});
    }
    case fbs::Body::Part:
      return read_part(*frame->body_as_Part());
    case fbs::Body::NodeReady:
      return Frame(NodeReady{});
    case fbs::Body::AllReady:
      return Frame(AllReady{});
    case fbs::Body::Alive:
      return Frame(Alive{});
    case fbs::Body::Failed: {
      const fbs::Failed* f = frame->body_as_Failed();
      return Frame(Failed{text(f->label()),
                          Error{reason_from_string(text(f->reason())), text(f->message()), text(f->hint())}});
    }
    case fbs::Body::NONE:
      break;
  }
  return fail(Reason::version, "a frame of an unknown kind", "run the same version of wcache on every node");
}

void Link::send(const Frame& frame) {
  const std::vector<std::byte> bytes = encode(frame);
  out_.insert(out_.end(), bytes.begin(), bytes.end());
}

Status Link::flush() {
  while (sent_ < out_.size()) {
    const ssize_t n =
        ::send(fd_.get(), out_.data() + sent_, out_.size() - sent_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return {};
    if (n < 0) return fail_errno("sending", errno);
    sent_ += static_cast<std::size_t>(n);
  }
  out_.clear();
  sent_ = 0;
  return {};
}

Status Link::fill(std::size_t limit) {
  while (in_.size() <= limit + kLengthWord) {
    const std::size_t before = in_.size();
    in_.resize(before + kReadAtOnce);
    const ssize_t n = recv(fd_.get(), in_.data() + before, kReadAtOnce, MSG_DONTWAIT);
    in_.resize(before + (n > 0 ? static_cast<std::size_t>(n) : 0));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return {};
    if (n < 0) return fail_errno("receiving", errno);
    if (n == 0) return fail(Reason::io, "the connection was closed");
    heard_ = Clock::now();
  }
  return {};
}

Result<std::optional<Frame>> Link::next(std::size_t limit) {
  if (in_.size() < kLengthWord) return std::nullopt;
  std::size_t nbytes = 0;
  for (std::size_t i = 0; i < kLengthWord; ++i) nbytes |= std::to_integer<std::size_t>(in_[i]) << (8 * i);
  if (nbytes > limit) return fail(Reason::corrupt, "a frame of " + std::to_string(nbytes) + " bytes");
  if (in_.size() < kLengthWord + nbytes) return std::nullopt;
  Result<Frame> frame = decode(std::span(in_).subspan(kLengthWord, nbytes));
  in_.erase(in_.begin(), in_.begin() + static_cast<std::ptrdiff_t>(kLengthWord + nbytes));
  if (!frame) return tl::unexpected(frame.error());
  return std::optional<Frame>(std::move(*frame));
}

}  // namespace wcache::rendezvous

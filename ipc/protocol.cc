#include "ipc/protocol.h"

#include <algorithm>
#include <array>
#include <optional>
#include <type_traits>
#include <utility>

#include "ipc/message.h"
#include "ipc/protocol_generated.h"

namespace wcache {
namespace {

using flatbuffers::FlatBufferBuilder;
using flatbuffers::Offset;

constexpr std::array<std::string_view, 6> kStates{"starting", "filling",  "ready",
                                                  "failed",   "orphaned", "stale"};
constexpr std::array<std::string_view, std::variant_size_v<Body>> kNames{
    "Hello",       "HelloReply",     "ErrorReply",    "StatusRequest",   "StatusReply",   "AttachRequest",
    "AttachReply", "Descriptors",    "VerifyRequest", "VerifyProgress",  "VerifyReply",   "EvictRequest",
    "EvictReply",  "HoldersRequest", "HoldersReply",  "WithdrawRequest", "WithdrawReply", "RankStatus",
    "GroupFiles",  "Sealed",         "Publish",       "PairRequest",     "PairReply",     "SlabRequest",
    "SlabReply",   "CopyRequest",    "CopyReply"};

constexpr std::size_t kMaxDecoded = std::size_t{1} << 20;
constexpr flatbuffers::uoffset_t kMaxDepth = 8;
constexpr flatbuffers::uoffset_t kMaxTables = 4096;

// ---- to FlatBuffers
// -------------------------------------------------------------------------------------------------

Offset<flatbuffers::String> text(FlatBufferBuilder& to, const std::string& value) {
  return value.empty() ? Offset<flatbuffers::String>() : to.CreateString(value);
}

Offset<wire::Holder> pack(FlatBufferBuilder& to, const Holder& from) {
  return wire::CreateHolder(to, from.pid, text(to, from.command), from.since);
}

template <class Table>
using OffsetVector = Offset<flatbuffers::Vector<Offset<Table>>>;

OffsetVector<wire::Holder> pack(FlatBufferBuilder& to, const std::vector<Holder>& from) {
  if (from.empty()) return {};
  std::vector<Offset<wire::Holder>> rows;
  for (const Holder& holder : from) rows.push_back(pack(to, holder));
  return to.CreateVector(rows);
}

Offset<wire::Hello> pack(FlatBufferBuilder& to, const Hello& from) {
  return wire::CreateHello(to, from.min_version, from.max_version, static_cast<wire::Purpose>(from.purpose),
                           text(to, from.command));
}

Offset<wire::HelloReply> pack(FlatBufferBuilder& to, const HelloReply& from) {
  return wire::CreateHelloReply(to, from.version, from.pid);
}

Offset<wire::ErrorReply> pack(FlatBufferBuilder& to, const ErrorReply& from) {
  return wire::CreateErrorReply(to, to.CreateString(std::string(to_string(from.error.reason))),
                                text(to, from.error.message), text(to, from.error.hint),
                                text(to, from.error.key));
}

Offset<wire::RankStatus> pack(FlatBufferBuilder& to, const RankStatus& from) {
  const auto role = text(to, from.role), name = text(to, from.name), fingerprint = text(to, from.fingerprint),
             layout = text(to, from.layout), source = text(to, from.source),
             state = to.CreateString(std::string(to_string(from.state))), reason = text(to, from.reason),
             message = text(to, from.message), hint = text(to, from.hint),
             device = text(to, from.device_uuid), tier = text(to, from.tier), pages = text(to, from.pages),
             socket = text(to, from.socket), fill_path = text(to, from.fill_path),
             ipc_kind = text(to, from.ipc_kind);
  const auto holders = pack(to, from.holders);
  return wire::CreateRankStatus(to, role, name, fingerprint, layout, source, state, reason, message, hint,
                                from.nbytes, from.tensors, from.tp_size, from.rank, from.pid, device, tier,
                                pages, socket, from.filled, from.rate, fill_path, from.survives, holders,
                                from.since, from.holders_complete, from.node_ranks, ipc_kind, from.context,
                                from.device_nbytes);
}

Offset<wire::PairRequest> pack(FlatBufferBuilder& to, const PairRequest& from) {
  const auto target = text(to, from.target), draft = text(to, from.draft);
  return wire::CreatePairRequest(to, target, draft);
}

Offset<wire::MountStatus> pack(FlatBufferBuilder& to, const MountStatus& from) {
  if (from == MountStatus{}) return {};
  const auto path = text(to, from.path), reason = text(to, from.reason);
  const auto entries = to.CreateVectorOfStrings(from.entries);
  std::vector<Offset<wire::PairRequest>> rows;
  for (const PairRequest& pair : from.pairs) rows.push_back(pack(to, pair));
  const OffsetVector<wire::PairRequest> pairs =
      rows.empty() ? OffsetVector<wire::PairRequest>() : to.CreateVector(rows);
  return wire::CreateMountStatus(to, path, from.pid, from.passthrough, reason, entries, pairs);
}

Offset<wire::StatusReply> pack(FlatBufferBuilder& to, const StatusReply& from) {
  std::vector<Offset<wire::RankStatus>> rows;
  for (const RankStatus& rank : from.ranks) rows.push_back(pack(to, rank));
  const OffsetVector<wire::RankStatus> ranks =
      rows.empty() ? OffsetVector<wire::RankStatus>() : to.CreateVector(rows);
  return wire::CreateStatusReply(to, from.pid, ranks, pack(to, from.mount), from.more);
}

Offset<wire::AttachReply> pack(FlatBufferBuilder& to, const AttachReply& from) {
  std::vector<std::uint8_t> bytes;
  for (const DeviceHandle& handle : from.handles)
    for (const std::byte byte : handle) bytes.push_back(std::to_integer<std::uint8_t>(byte));
  const auto handles = bytes.empty() ? Offset<flatbuffers::Vector<std::uint8_t>>() : to.CreateVector(bytes);
  const auto instance = text(to, from.instance);
  return wire::CreateAttachReply(to, from.descriptors, from.manifest_nbytes, from.slabs, handles, instance);
}

Offset<wire::SlabRequest> pack(FlatBufferBuilder& to, const SlabRequest& from) {
  const auto role = text(to, from.role), fingerprint = text(to, from.fingerprint);
  return wire::CreateSlabRequest(to, from.slab, role, fingerprint, from.rank);
}
Offset<wire::SlabReply> pack(FlatBufferBuilder& to, const SlabReply& from) {
  return wire::CreateSlabReply(to, from.nbytes);
}
Offset<wire::CopyRequest> pack(FlatBufferBuilder& to, const CopyRequest& from) {
  return wire::CreateCopyRequest(to, from.file, from.offset, from.nbytes);
}
Offset<wire::CopyReply> pack(FlatBufferBuilder& to, const CopyReply& from) {
  return wire::CreateCopyReply(to, from.nbytes);
}

Offset<wire::Descriptors> pack(FlatBufferBuilder& to, const Descriptors& from) {
  return wire::CreateDescriptors(to, from.first, from.count);
}

Offset<wire::VerifyProgress> pack(FlatBufferBuilder& to, const VerifyProgress& from) {
  return wire::CreateVerifyProgress(to, from.done, from.total);
}

Offset<wire::VerifyReply> pack(FlatBufferBuilder& to, const VerifyReply& from) {
  const auto file = text(to, from.file), tensor = text(to, from.tensor), expected = text(to, from.expected),
             found = text(to, from.found);
  return wire::CreateVerifyReply(to, from.ok, file, tensor, expected, found);
}

Offset<wire::HoldersReply> pack(FlatBufferBuilder& to, const HoldersReply& from) {
  return wire::CreateHoldersReply(to, pack(to, from.holders));
}

Offset<wire::WithdrawRequest> pack(FlatBufferBuilder& to, const WithdrawRequest& from) {
  return wire::CreateWithdrawRequest(to, from.force);
}

Offset<wire::WithdrawReply> pack(FlatBufferBuilder& to, const WithdrawReply& from) {
  return wire::CreateWithdrawReply(to, from.withdrawn, pack(to, from.holders));
}

Offset<wire::GroupFiles> pack(FlatBufferBuilder& to, const GroupFiles& from) {
  std::vector<Offset<wire::KeyFile>> rows;
  for (const Key::File& file : from.files)
    rows.push_back(
        wire::CreateKeyFile(to, text(to, file.name), file.nbytes, file.digest.high, file.digest.low));
  return wire::CreateGroupFiles(to, to.CreateVector(rows), from.more);
}

Offset<wire::Sealed> pack(FlatBufferBuilder& to, const Sealed&) {
  return wire::CreateSealed(to);
}
Offset<wire::Publish> pack(FlatBufferBuilder& to, const Publish&) {
  return wire::CreatePublish(to);
}
Offset<wire::PairReply> pack(FlatBufferBuilder& to, const PairReply&) {
  return wire::CreatePairReply(to);
}

Offset<wire::StatusRequest> pack(FlatBufferBuilder& to, const StatusRequest&) {
  return wire::CreateStatusRequest(to);
}
Offset<wire::AttachRequest> pack(FlatBufferBuilder& to, const AttachRequest& from) {
  const auto role = text(to, from.role), fingerprint = text(to, from.fingerprint);
  return wire::CreateAttachRequest(to, role, fingerprint, from.rank);
}
Offset<wire::VerifyRequest> pack(FlatBufferBuilder& to, const VerifyRequest&) {
  return wire::CreateVerifyRequest(to);
}
Offset<wire::EvictRequest> pack(FlatBufferBuilder& to, const EvictRequest& from) {
  const auto role = text(to, from.role), fingerprint = text(to, from.fingerprint);
  return wire::CreateEvictRequest(to, role, fingerprint);
}
Offset<wire::EvictReply> pack(FlatBufferBuilder& to, const EvictReply&) {
  return wire::CreateEvictReply(to);
}
Offset<wire::HoldersRequest> pack(FlatBufferBuilder& to, const HoldersRequest&) {
  return wire::CreateHoldersRequest(to);
}

/// The table that a body is packed into.
template <class Table>
const Table* pointer_to(Offset<Table>);
template <class T>
using TableOf = std::remove_pointer_t<decltype(pointer_to(
    pack(std::declval<FlatBufferBuilder&>(), std::declval<const T&>())))>;
template <class T>
constexpr wire::Body kTypeOf = wire::BodyTraits<std::remove_const_t<TableOf<T>>>::enum_value;

// ---- from FlatBuffers
// -----------------------------------------------------------------------------------------------

/// Reads verified tables. Offsets of a FlatBuffer may all point at one long string, so a small message could
/// ask for gigabytes: what is copied out is counted, and past the budget nothing more is copied and `failure`
/// is set.
class Reader {
 public:
  explicit Reader(std::size_t budget) : budget_(budget) {}

  std::optional<Error> failure() const { return failure_; }

  std::string text(const flatbuffers::String* from) {
    if (from == nullptr || !spend(from->size())) return {};
    return from->str();
  }

  std::vector<Holder> unpack(const flatbuffers::Vector<Offset<wire::Holder>>* from) {
    std::vector<Holder> out;
    if (from == nullptr) return out;
    for (const wire::Holder* row : *from) {
      if (!spend(sizeof(Holder))) break;
      out.push_back(Holder{row->pid(), text(row->command()), row->since()});
    }
    return out;
  }

  Hello unpack(const wire::Hello& from) {
    if (from.purpose() > wire::Purpose::MAX)
      unknown("purpose", std::to_string(static_cast<int>(from.purpose())));
    return Hello{from.min_version(), from.max_version(), static_cast<Purpose>(from.purpose()),
                 text(from.command())};
  }
  HelloReply unpack(const wire::HelloReply& from) { return HelloReply{from.version(), from.pid()}; }
  ErrorReply unpack(const wire::ErrorReply& from) {
    return ErrorReply{Error{reason_from_string(text(from.reason())), text(from.message()), text(from.hint()),
                            text(from.key()), 0}};
  }

  RankStatus unpack(const wire::RankStatus& from) {
    RankStatus out;
    out.role = text(from.role());
    out.name = text(from.name());
    out.fingerprint = text(from.fingerprint());
    out.layout = text(from.layout());
    out.source = text(from.source());
    out.state = state(text(from.state()));
    out.reason = text(from.reason());
    out.message = text(from.message());
    out.hint = text(from.hint());
    out.nbytes = from.nbytes();
    out.tensors = from.tensors();
    out.tp_size = from.tp_size();
    out.rank = from.rank();
    out.pid = from.pid();
    out.device_uuid = text(from.device_uuid());
    out.tier = text(from.tier());
    out.pages = text(from.pages());
    out.socket = text(from.socket());
    out.filled = from.filled();
    out.rate = from.rate();
    out.fill_path = text(from.fill_path());
    out.survives = from.survives();
    out.holders = unpack(from.holders());
    out.since = from.since();
    out.holders_complete = from.holders_complete();
    out.node_ranks = from.node_ranks();
    out.ipc_kind = text(from.ipc_kind());
    out.context = from.context();
    out.device_nbytes = from.device_nbytes();
    return out;
  }

  MountStatus unpack(const wire::MountStatus& from) {
    MountStatus out{text(from.path()), from.pid(), from.passthrough(), text(from.reason()), {}, {}};
    if (from.entries() != nullptr) {
      for (const flatbuffers::String* entry : *from.entries()) {
        if (!spend(sizeof(std::string))) break;
        out.entries.push_back(text(entry));
      }
    }
    if (from.pairs() != nullptr) {
      for (const wire::PairRequest* pair : *from.pairs()) {
        if (!spend(sizeof(PairRequest))) break;
        out.pairs.push_back(unpack(*pair));
      }
    }
    return out;
  }

  StatusReply unpack(const wire::StatusReply& from) {
    StatusReply out;
    out.pid = from.pid();
    out.more = from.more();
    if (from.mount() != nullptr) out.mount = unpack(*from.mount());
    if (from.ranks() == nullptr) return out;
    for (const wire::RankStatus* row : *from.ranks()) {
      if (!spend(sizeof(RankStatus))) break;
      out.ranks.push_back(unpack(*row));
    }
    return out;
  }

  AttachReply unpack(const wire::AttachReply& from) {
    AttachReply out{from.descriptors(), from.manifest_nbytes(), from.slabs(), {}, text(from.instance())};
    if (from.handles() == nullptr) return out;
    const auto bytes = std::as_bytes(std::span(from.handles()->data(), from.handles()->size()));
    constexpr std::size_t kHandle = sizeof(DeviceHandle);
    if (bytes.size() % kHandle != 0) damaged("handles are of 64 bytes each");
    for (std::size_t at = 0; bytes.size() - at >= kHandle; at += kHandle)
      std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(at), kHandle,
                  out.handles.emplace_back().begin());
    return out;
  }
  SlabRequest unpack(const wire::SlabRequest& from) {
    return SlabRequest{from.slab(), text(from.role()), text(from.fingerprint()), from.rank()};
  }
  SlabReply unpack(const wire::SlabReply& from) { return SlabReply{from.nbytes()}; }
  CopyRequest unpack(const wire::CopyRequest& from) {
    return CopyRequest{from.file(), from.offset(), from.nbytes()};
  }
  CopyReply unpack(const wire::CopyReply& from) { return CopyReply{from.nbytes()}; }
  Descriptors unpack(const wire::Descriptors& from) { return Descriptors{from.first(), from.count()}; }
  VerifyProgress unpack(const wire::VerifyProgress& from) {
    return VerifyProgress{from.done(), from.total()};
  }
  VerifyReply unpack(const wire::VerifyReply& from) {
    return VerifyReply{from.ok(), text(from.file()), text(from.tensor()), text(from.expected()),
                       text(from.found())};
  }
  HoldersReply unpack(const wire::HoldersReply& from) { return HoldersReply{unpack(from.holders())}; }
  WithdrawRequest unpack(const wire::WithdrawRequest& from) { return WithdrawRequest{from.force()}; }
  WithdrawReply unpack(const wire::WithdrawReply& from) {
    return WithdrawReply{from.withdrawn(), unpack(from.holders())};
  }
  GroupFiles unpack(const wire::GroupFiles& from) {
    GroupFiles out{{}, from.more()};
    if (from.files() == nullptr) return out;
    for (const wire::KeyFile* row : *from.files()) {
      if (!spend(sizeof(Key::File))) break;
      out.files.push_back({text(row->name()), row->nbytes(), Digest{row->high(), row->low()}});
    }
    return out;
  }
  Sealed unpack(const wire::Sealed&) { return {}; }
  Publish unpack(const wire::Publish&) { return {}; }
  PairRequest unpack(const wire::PairRequest& from) {
    return PairRequest{text(from.target()), text(from.draft())};
  }
  PairReply unpack(const wire::PairReply&) { return {}; }
  StatusRequest unpack(const wire::StatusRequest&) { return {}; }
  AttachRequest unpack(const wire::AttachRequest& from) {
    return AttachRequest{text(from.role()), text(from.fingerprint()), from.rank()};
  }
  VerifyRequest unpack(const wire::VerifyRequest&) { return {}; }
  EvictRequest unpack(const wire::EvictRequest& from) {
    return EvictRequest{text(from.role()), text(from.fingerprint())};
  }
  EvictReply unpack(const wire::EvictReply&) { return {}; }
  HoldersRequest unpack(const wire::HoldersRequest&) { return {}; }

 private:
  bool spend(std::size_t nbytes) {
    if (nbytes <= budget_) {
      budget_ -= nbytes;
      return true;
    }
    budget_ = 0;
    damaged("a message repeats itself beyond its own size");
    return false;
  }

  void damaged(std::string what) {
    if (!failure_) failure_ = Error{Reason::corrupt, std::move(what)};
  }

  void unknown(std::string_view what, const std::string& word) {
    if (!failure_)
      failure_ = Error{Reason::version, "a message has an unknown " + std::string(what) + ": " + word};
  }

  State state(const std::string& word) {
    const auto* found = std::find(kStates.begin(), kStates.end(), word);
    if (found != kStates.end()) return static_cast<State>(found - kStates.begin());
    unknown("state", word);
    return State::failed;
  }

  std::size_t budget_;
  std::optional<Error> failure_;
};

template <std::size_t I = 0>
std::optional<Body> unpack_body(const wire::Envelope& from, Reader& reader) {
  if constexpr (I == std::variant_size_v<Body>) {
    return std::nullopt;
  } else {
    using T = std::variant_alternative_t<I, Body>;
    if (from.body_type() != kTypeOf<T>) return unpack_body<I + 1>(from, reader);
    return Body(std::in_place_index<I>, reader.unpack(*static_cast<const TableOf<T>*>(from.body())));
  }
}

}  // namespace

bool operator==(const ErrorReply& a, const ErrorReply& b) {
  return a.error.reason == b.error.reason && a.error.message == b.error.message &&
         a.error.hint == b.error.hint && a.error.key == b.error.key;
}

std::string_view to_string(State state) {
  return kStates[static_cast<std::size_t>(state)];
}

std::string_view name_of(const Body& body) {
  return kNames[body.index()];
}

Result<std::vector<std::byte>> encode(const Envelope& envelope) {
  FlatBufferBuilder builder;
  const Offset<void> body = std::visit(
      [&](const auto& value) { return Offset<void>(pack(builder, value).Union()); }, envelope.body);
  const wire::Body type = std::visit(
      [](const auto& value) { return kTypeOf<std::remove_cvref_t<decltype(value)>>; }, envelope.body);
  builder.FinishSizePrefixed(wire::CreateEnvelope(builder, envelope.id, type, body),
                             wire::EnvelopeIdentifier());
  if (builder.GetSize() > kMaxMessageBytes)
    return fail(Reason::internal, "a " + std::string(name_of(envelope.body)) + " of " +
                                      std::to_string(builder.GetSize()) + " bytes is too long to send");
  const auto* begin = reinterpret_cast<const std::byte*>(builder.GetBufferPointer());
  return std::vector<std::byte>(begin, begin + builder.GetSize());
}

Result<Envelope> decode(std::span<const std::byte> bytes) {
  if (bytes.size() > kMaxMessageBytes) return fail(Reason::corrupt, "a message is too long");
  const std::vector<std::byte> aligned(bytes.begin(), bytes.end());
  const auto* begin = reinterpret_cast<const std::uint8_t*>(aligned.data());
  flatbuffers::Verifier verifier(begin, aligned.size(), kMaxDepth, kMaxTables);
  if (!wire::VerifySizePrefixedEnvelopeBuffer(verifier))
    return fail(Reason::corrupt, "a message is malformed");
  const wire::Envelope& from = *wire::GetSizePrefixedEnvelope(begin);
  if (from.body_type() != wire::Body::NONE && from.body() == nullptr)
    return fail(Reason::corrupt, "a message has no body");
  Reader reader(kMaxDecoded);
  std::optional<Body> body = unpack_body(from, reader);
  if (!body)
    return fail(Reason::version,
                "a message is of an unknown kind: " + std::to_string(static_cast<int>(from.body_type())));
  if (reader.failure()) return fail(*reader.failure());
  return Envelope{from.id(), std::move(*body)};
}

Result<std::uint16_t> negotiate(const Hello& hello) {
  const std::uint16_t highest = std::min(hello.max_version, kMaxProtocolVersion);
  if (hello.min_version == 0 || hello.min_version > hello.max_version || highest < kMinProtocolVersion ||
      highest < hello.min_version)
    return fail(Reason::version,
                "the peer speaks protocol versions " + std::to_string(hello.min_version) + " to " +
                    std::to_string(hello.max_version) + ", this side " + std::to_string(kMinProtocolVersion) +
                    " to " + std::to_string(kMaxProtocolVersion),
                "run programs of the same installation");
  return highest;
}

}  // namespace wcache

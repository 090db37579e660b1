#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/device_handle.h"
#include "core/key.h"
#include "core/result.h"

namespace wcache {

// The messages of protocol.fbs as plain values; docs/protocol.md has who sends what when. An empty string and
// a zero mean "not known".

inline constexpr std::uint16_t kMinProtocolVersion = 1;
inline constexpr std::uint16_t kMaxProtocolVersion = 1;

enum class Purpose : std::uint8_t { command, client, mount, launcher };

struct Hello {
  std::uint16_t min_version = kMinProtocolVersion;
  std::uint16_t max_version = kMaxProtocolVersion;
  Purpose purpose = Purpose::command;
  std::string command;  ///< the caller's argv[0], for `holders`
  bool operator==(const Hello&) const = default;
};

struct HelloReply {
  std::uint16_t version = kMaxProtocolVersion;
  std::int32_t pid = 0;
  bool operator==(const HelloReply&) const = default;
};

struct ErrorReply {
  Error error;  ///< without errnum
};
bool operator==(const ErrorReply& a, const ErrorReply& b);

struct Holder {
  std::int32_t pid = 0;
  std::string command;
  double since = 0;  ///< Unix time
  bool operator==(const Holder&) const = default;
};

enum class State : std::uint8_t { starting, filling, ready, failed, orphaned, stale };
std::string_view to_string(State state);

/// One rank of one group, as far as the sender knows it.
struct RankStatus {
  std::string role;
  std::string name;
  std::string fingerprint;
  std::string layout;
  std::string source;
  State state = State::starting;
  std::string reason;   ///< with failed; spelled as to_string(Reason)
  std::string message;  ///< with failed
  std::string hint;
  std::uint64_t nbytes = 0;  ///< of this rank's images
  std::uint64_t tensors = 0;
  std::uint32_t tp_size = 0;
  std::uint32_t rank = 0;
  std::int32_t pid = 0;
  std::string device_uuid;
  std::string tier;
  std::string pages;  ///< huge, small
  std::string socket;
  std::uint64_t filled = 0;  ///< bytes read and hashed so far
  double rate = 0;           ///< bytes a second
  std::string fill_path;
  bool survives = false;
  std::vector<Holder> holders;
  double since = 0;  ///< when this state began, Unix time
  bool holders_complete = false;
  std::uint32_t node_ranks = 0;  ///< ranks of its group on this node
  std::string ipc_kind = {};     ///< file, cuda-ipc, cuda-vmm
  bool context = false;          ///< the daemon has a context on its device now
  std::uint64_t device_nbytes =
      0;  ///< of the slabs that the daemon, of an orphan the mount, holds on the device
  bool operator==(const RankStatus&) const = default;
};

/// A target and the draft that was loaded for it. As a request it tells the mount so.
struct PairRequest {
  std::string target;  ///< fingerprints
  std::string draft;
  bool operator==(const PairRequest&) const = default;
};
struct PairReply {
  bool operator==(const PairReply&) const = default;
};

struct MountStatus {
  std::string path;
  std::int32_t pid = 0;
  bool passthrough = false;
  std::string reason;                   ///< why not passthrough
  std::vector<std::string> entries;     ///< "role/fingerprint" of every directory shown
  std::vector<PairRequest> pairs = {};  ///< of which both directories are shown
  bool operator==(const MountStatus&) const = default;
};

struct StatusRequest {
  bool operator==(const StatusRequest&) const = default;
};
struct StatusReply {
  std::int32_t pid = 0;
  std::vector<RankStatus> ranks;
  MountStatus mount;  ///< from wcachefs only; its path is empty otherwise
  bool more = false;  ///< another page follows; see pages_of
  bool operator==(const StatusReply&) const = default;
};

/// An orphaned entry's part; to a daemon, which has one alone, all empty.
struct AttachRequest {
  std::string role;
  std::string fingerprint;
  std::uint32_t rank = 0;
  bool operator==(const AttachRequest&) const = default;
};
struct AttachReply {
  std::uint32_t descriptors = 0;  ///< how many will come, all told
  std::uint64_t manifest_nbytes = 0;
  std::uint32_t slabs = 0;                 ///< how many of the descriptors, at the end, are slabs
  std::vector<DeviceHandle> handles = {};  ///< one a slab (cuda-ipc)
  std::string instance = {};               ///< DeviceEntry::instance; empty in host memory
  bool operator==(const AttachReply&) const = default;
};
struct Descriptors {
  std::uint32_t first = 0;
  std::uint32_t count = 0;  ///< of the descriptors with this datagram
  bool operator==(const Descriptors&) const = default;
};

/// The most bytes that a CopyRequest may ask for.
inline constexpr std::uint32_t kMaxCopyNbytes = 4U << 20;

/// One slab's descriptor, which comes with the reply; role, fingerprint and rank as in AttachRequest.
struct SlabRequest {
  std::uint32_t slab = 0;
  std::string role = {};
  std::string fingerprint = {};
  std::uint32_t rank = 0;
  bool operator==(const SlabRequest&) const = default;
};
struct SlabReply {
  std::uint64_t nbytes = 0;
  bool operator==(const SlabReply&) const = default;
};

/// Bytes of a file on a device, to be written to the start of the descriptor that comes with the request.
struct CopyRequest {
  std::uint32_t file = 0;  ///< row of the manifest
  std::uint64_t offset = 0;
  std::uint32_t nbytes = 0;  ///< at most kMaxCopyNbytes
  bool operator==(const CopyRequest&) const = default;
};
struct CopyReply {
  std::uint32_t nbytes = 0;  ///< as asked for
  bool operator==(const CopyReply&) const = default;
};

struct VerifyRequest {
  bool operator==(const VerifyRequest&) const = default;
};
struct VerifyProgress {
  std::uint64_t done = 0;
  std::uint64_t total = 0;
  bool operator==(const VerifyProgress&) const = default;
};
struct VerifyReply {
  bool ok = false;
  std::string file;  ///< the first that differs
  std::string tensor;
  std::string expected;
  std::string found;
  bool operator==(const VerifyReply&) const = default;
};

struct EvictRequest {
  std::string role;         ///< to wcachefs only: which orphaned entry
  std::string fingerprint;  ///< likewise
  bool operator==(const EvictRequest&) const = default;
};
struct EvictReply {
  bool operator==(const EvictReply&) const = default;
};

struct HoldersRequest {
  bool operator==(const HoldersRequest&) const = default;
};
struct HoldersReply {
  std::vector<Holder> holders;
  bool operator==(const HoldersReply&) const = default;
};
struct WithdrawRequest {
  bool force = false;  ///< take the directory away even if it is held
  bool operator==(const WithdrawRequest&) const = default;
};
struct WithdrawReply {
  bool withdrawn = false;  ///< false: held by `holders`, the directory stays
  std::vector<Holder> holders;
  bool operator==(const WithdrawReply&) const = default;
};

/// Part of the key of a group of several ranks or nodes; a page of it.
struct GroupFiles {
  std::vector<Key::File> files;
  bool more = false;  ///< another page follows; see file_pages_of
  bool operator==(const GroupFiles&) const = default;
};
struct Sealed {
  bool operator==(const Sealed&) const = default;
};
struct Publish {
  bool operator==(const Publish&) const = default;
};

using Body =
    std::variant<Hello, HelloReply, ErrorReply, StatusRequest, StatusReply, AttachRequest, AttachReply,
                 Descriptors, VerifyRequest, VerifyProgress, VerifyReply, EvictRequest, EvictReply,
                 HoldersRequest, HoldersReply, WithdrawRequest, WithdrawReply, RankStatus, GroupFiles, Sealed,
                 Publish, PairRequest, PairReply, SlabRequest, SlabReply, CopyRequest, CopyReply>;

struct Envelope {
  std::uint32_t id = 0;  ///< a reply carries its request's id
  Body body;
  bool operator==(const Envelope&) const = default;
};

/// The name of a body's type, for messages and logs.
std::string_view name_of(const Body& body);

/// One datagram's bytes. internal when they would pass kMaxMessageBytes: holders lists and statuses are cut
/// to fit by who makes them (fit_holders, pages_of).
Result<std::vector<std::byte>> encode(const Envelope& envelope);

/// Reads a datagram from a peer that is not trusted: verified, of exactly this length, never becoming more
/// than 1 MiB of values. version for a body or a word that this version does not know, corrupt for everything
/// else.
Result<Envelope> decode(std::span<const std::byte> bytes);

/// A status as messages that fit: ranks and entries spread over as many pages as needed, `more` set on all
/// but the last. Too long a list of holders is cut, and holders_complete with it.
std::vector<StatusReply> pages_of(StatusReply status);

/// A key's files as messages that fit, `more` set on all but the last.
std::vector<GroupFiles> file_pages_of(const std::vector<Key::File>& files);

/// The heads of the messages that carry `count` descriptors, as many in each as fit.
std::vector<Descriptors> descriptor_pages(std::size_t count);

/// Cuts commands to a readable length and the list to what a message holds. True when nobody was dropped.
bool fit_holders(std::vector<Holder>& holders);

/// The version both sides speak, out of a Hello's range; version when there is none. Version 0 is never
/// valid.
Result<std::uint16_t> negotiate(const Hello& hello);

}  // namespace wcache

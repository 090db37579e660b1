#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "core/fd.h"
#include "core/result.h"
#include "ipc/connection.h"
#include "ipc/deadline.h"
#include "ipc/protocol.h"

namespace wcache {

/// Encodes and sends one message; `fds` are borrowed.
Status send_message(Connection& connection, const Envelope& envelope, Deadline deadline,
                    std::span<const int> fds = {});

/// Sends the answer to an AttachRequest: `reply`, whose number of descriptors is set here, and then `fds`,
/// which are borrowed: the manifest, the images in host memory, `reply.slabs` slabs.
Status send_attachment(Connection& connection, std::uint32_t id, AttachReply reply, std::span<const int> fds,
                       Deadline deadline);

/// What a rank handed out. The descriptors outlive the connection and the daemon; manifest and images are
/// read-only.
struct Attachment {
  Fd manifest;
  std::uint64_t manifest_nbytes = 0;
  std::vector<Fd> images;  ///< of the manifest's files that are in host memory, in the order of its rows
  std::vector<Fd> slabs;   ///< cuda-vmm: a descriptor a slab of the manifest
  std::vector<DeviceHandle> handles;  ///< cuda-ipc: a handle a slab of the manifest
  /// 32 hex digits that tell this filling of device memory from any other; empty for an entry in host memory.
  std::string instance;
};

/// One slab of an entry whose kind is cuda-vmm.
struct SlabDescriptor {
  Fd fd;
  std::uint64_t nbytes = 0;
};

/// The asking side of a public socket, after a successful Hello. One request at a time, one thread at a time.
/// An ErrorReply comes back as the error it carries. After any error of transport (timeout included) the
/// connection is out of step: drop the client.
class Client {
 public:
  /// Connects, checks the peer's user, exchanges Hello. `command` names the caller to `holders`.
  /// not_running: nobody listens or the peer hung up; version; timeout; denied.
  static Result<Client> connect(const std::string& path, Purpose purpose, std::string_view command,
                                Deadline deadline);

  /// The same over a connection that is there already.
  static Result<Client> over(Connection connection, Purpose purpose, std::string_view command,
                             Deadline deadline);

  std::int32_t server_pid() const { return server_pid_; }

  /// One request, one reply of the kind named: client.request<EvictReply>(EvictRequest{}, deadline).
  template <class Reply>
  Result<Reply> request(Body body, Deadline deadline) {
    Result<std::uint32_t> id = ask(std::move(body), deadline);
    if (!id) return fail(std::move(id.error()));
    return await<Reply>(*id, deadline);
  }

  /// The whole status, pages joined.
  Result<StatusReply> status(Deadline deadline);

  /// What the rank holds; the connection is the lease from now on. not_ready while the rank fills. Checks
  /// that as many descriptors came as announced, not what they are. `which`: of wcachefs, which has several
  /// orphaned entries.
  Result<Attachment> attach(Deadline deadline, const AttachRequest& which = {});

  /// What a line of an ipc_handle attribute names; the connection is the lease from now on.
  Result<SlabDescriptor> slab(const SlabRequest& which, Deadline deadline);

  /// Has the daemon write the bytes that `which` names to the start of `out`, a descriptor of memory that is
  /// borrowed. An error of the daemon's leaves the connection usable.
  Status copy(const CopyRequest& which, int out, Deadline deadline);

  /// Has the daemon re-hash its bytes; `progress` is called in between. `silence` is the longest wait for a
  /// sign of life.
  Result<VerifyReply> verify(const std::function<void(const VerifyProgress&)>& progress,
                             std::chrono::milliseconds silence);

  /// For who goes on with the connection alone: a lease to keep, or a mount that waits for the daemon's
  /// requests.
  Connection& connection() { return connection_; }
  Connection release() { return std::move(connection_); }

 private:
  Client(Connection connection, std::int32_t pid) : connection_(std::move(connection)), server_pid_(pid) {}

  struct Answer {
    Body body;
    std::vector<Fd> fds;
  };
  std::string peer() const;  ///< for messages
  Error silent() const;
  Result<std::uint32_t> ask(Body body, Deadline deadline, std::span<const int> fds = {});
  Result<Answer> answer(std::uint32_t id, std::size_t fds, Deadline deadline);
  Result<std::vector<Fd>> descriptors(std::uint32_t id, std::size_t count, Deadline deadline);
  static Error unexpected(const Body& body);

  template <class Reply>
  Result<Reply> await(std::uint32_t id, Deadline deadline) {
    Result<Answer> got = answer(id, 0, deadline);
    if (!got) return fail(std::move(got.error()));
    Reply* reply = std::get_if<Reply>(&got->body);
    if (reply == nullptr) return fail(unexpected(got->body));
    return std::move(*reply);
  }

  Connection connection_;
  std::int32_t server_pid_ = 0;
  std::string path_;  ///< of the socket; empty where it was connected elsewhere
  std::uint32_t last_id_ = 0;
};

}  // namespace wcache

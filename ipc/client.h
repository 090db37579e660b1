#pragma once

#include <cstdint>
#include <functional>
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

/// Encodes and sends one message without descriptors.
Status send_message(Connection& connection, const Envelope& envelope, Deadline deadline);

/// What a rank handed out. The descriptors are read-only and outlive the connection and the daemon.
struct Attachment {
  Fd manifest;
  std::uint64_t manifest_nbytes = 0;
  std::vector<Fd> images;  ///< in the order of the manifest's files
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

  /// Manifest and images; the connection is the lease from now on. not_ready while the rank fills. Checks
  /// that as many descriptors came as announced, not what they are.
  Result<Attachment> attach(Deadline deadline);

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
  Result<std::uint32_t> ask(Body body, Deadline deadline);
  Result<Answer> answer(std::uint32_t id, std::size_t fds, Deadline deadline);
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
  std::uint32_t last_id_ = 0;
};

}  // namespace wcache

#include "ipc/client.h"

#include <algorithm>
#include <iterator>
#include <optional>

#include "ipc/message.h"

namespace wcache {
namespace {

Error hung_up() {
  return Error{Reason::not_running, "the daemon closed the connection without an answer"};
}

}  // namespace

Status send_message(Connection& connection, const Envelope& envelope, Deadline deadline) {
  const Result<std::vector<std::byte>> bytes = encode(envelope);
  if (!bytes) return fail(bytes.error());
  return connection.send(*bytes, {}, deadline);
}

Result<Client> Client::connect(const std::string& path, Purpose purpose, std::string_view command,
                               Deadline deadline) {
  Result<Connection> connection = Connection::connect(path, deadline);
  if (!connection) return fail(connection.error());
  if (Status checked = connection->check_peer(); !checked) return fail(checked.error());
  Client client(std::move(*connection), 0);
  Hello hello;
  hello.purpose = purpose;
  hello.command = command;
  const Result<HelloReply> reply = client.request<HelloReply>(hello, deadline);
  if (!reply) return fail(reply.error());
  if (reply->version < kMinProtocolVersion || reply->version > kMaxProtocolVersion)
    return fail(Reason::version, "the daemon chose protocol version " + std::to_string(reply->version) +
                                     ", which was not offered");
  client.server_pid_ = reply->pid;
  return client;
}

Result<std::uint32_t> Client::ask(Body body, Deadline deadline) {
  const std::uint32_t id = ++last_id_;
  if (Status sent = send_message(connection_, Envelope{id, std::move(body)}, deadline); !sent)
    return fail(sent.error());
  return id;
}

Result<Client::Answer> Client::answer(std::uint32_t id, std::size_t fds, Deadline deadline) {
  Result<std::optional<Message>> message = connection_.receive({kMaxMessageBytes, fds}, deadline);
  if (!message) return fail(message.error());
  if (!*message) return fail(hung_up());
  Result<Envelope> envelope = decode((*message)->bytes);
  if (!envelope) return fail(envelope.error());
  if (envelope->id != id)
    return fail(Reason::corrupt, "an answer to request " + std::to_string(envelope->id) + " where one to " +
                                     std::to_string(id) + " was due");
  if (auto* error = std::get_if<ErrorReply>(&envelope->body)) return fail(std::move(error->error));
  return Answer{std::move(envelope->body), std::move((*message)->fds)};
}

Error Client::unexpected(const Body& body) {
  return Error{Reason::corrupt, "an unexpected answer: " + std::string(name_of(body))};
}

Result<StatusReply> Client::status(Deadline deadline) {
  const Result<std::uint32_t> id = ask(StatusRequest{}, deadline);
  if (!id) return fail(id.error());
  Result<StatusReply> whole = await<StatusReply>(*id, deadline);
  while (whole && whole->more) {
    Result<StatusReply> page = await<StatusReply>(*id, deadline);
    if (!page) return page;
    whole->more = page->more;
    std::move(page->ranks.begin(), page->ranks.end(), std::back_inserter(whole->ranks));
    std::move(page->mount.entries.begin(), page->mount.entries.end(),
              std::back_inserter(whole->mount.entries));
    std::move(page->mount.pairs.begin(), page->mount.pairs.end(), std::back_inserter(whole->mount.pairs));
  }
  return whole;
}

Result<Attachment> Client::attach(Deadline deadline) {
  const Result<std::uint32_t> id = ask(AttachRequest{}, deadline);
  if (!id) return fail(id.error());
  const Result<AttachReply> reply = await<AttachReply>(*id, deadline);
  if (!reply) return fail(reply.error());
  if (reply->descriptors == 0) return fail(Reason::corrupt, "an attachment without a manifest");
  Attachment attachment;
  attachment.manifest_nbytes = reply->manifest_nbytes;
  std::vector<Fd> fds;
  while (fds.size() < reply->descriptors) {
    Result<Answer> part =
        answer(*id, std::min<std::size_t>(kMaxMessageFds, reply->descriptors - fds.size()), deadline);
    if (!part) return fail(part.error());
    const auto* head = std::get_if<Descriptors>(&part->body);
    if (head == nullptr) return fail(unexpected(part->body));
    if (head->first != fds.size() || head->count != part->fds.size() || head->count == 0)
      return fail(Reason::corrupt, "descriptors " + std::to_string(head->first) + " and " +
                                       std::to_string(head->count) + " more were announced, " +
                                       std::to_string(part->fds.size()) + " came where " +
                                       std::to_string(fds.size()) + " was due");
    std::move(part->fds.begin(), part->fds.end(), std::back_inserter(fds));
  }
  attachment.manifest = std::move(fds.front());
  attachment.images.assign(std::make_move_iterator(fds.begin() + 1), std::make_move_iterator(fds.end()));
  return attachment;
}

Result<VerifyReply> Client::verify(const std::function<void(const VerifyProgress&)>& progress,
                                   std::chrono::milliseconds silence) {
  const Result<std::uint32_t> id = ask(VerifyRequest{}, deadline_in(silence));
  if (!id) return fail(id.error());
  for (;;) {
    Result<Answer> got = answer(*id, 0, deadline_in(silence));
    if (!got) return fail(got.error());
    if (auto* reply = std::get_if<VerifyReply>(&got->body)) return std::move(*reply);
    const auto* step = std::get_if<VerifyProgress>(&got->body);
    if (step == nullptr) return fail(unexpected(got->body));
    if (progress) progress(*step);
  }
}

}  // namespace wcache

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

/// Whether the counts of an attachment can be true together.
Status check(const AttachReply& reply) {
  if (reply.descriptors == 0) return fail(Reason::corrupt, "an attachment without a manifest");
  if (reply.slabs >= reply.descriptors)
    return fail(Reason::corrupt, "an attachment of " + std::to_string(reply.descriptors) + " descriptors, " +
                                     std::to_string(reply.slabs) + " of them slabs");
  if (reply.slabs > 0 && !reply.handles.empty())
    return fail(Reason::corrupt, "an attachment with descriptors and handles of slabs");
  const bool on_device = reply.slabs > 0 || !reply.handles.empty();
  const bool named = digest_from_hex(reply.instance).has_value();
  if (on_device ? !named : !reply.instance.empty())
    return fail(Reason::corrupt, "an attachment with the instance '" + reply.instance + "'");
  return {};
}

}  // namespace

Status send_message(Connection& connection, const Envelope& envelope, Deadline deadline,
                    std::span<const int> fds) {
  const Result<std::vector<std::byte>> bytes = encode(envelope);
  if (!bytes) return fail(bytes.error());
  return connection.send(*bytes, fds, deadline);
}

Status send_attachment(Connection& connection, std::uint32_t id, AttachReply reply, std::span<const int> fds,
                       Deadline deadline) {
  reply.descriptors = static_cast<std::uint32_t>(fds.size());
  if (Status sent = send_message(connection, {id, std::move(reply)}, deadline); !sent) return sent;
  for (const Descriptors& page : descriptor_pages(fds.size())) {
    const auto part = fds.subspan(page.first, page.count);
    if (Status sent = send_message(connection, {id, page}, deadline, part); !sent) return sent;
  }
  return {};
}

Result<Client> Client::connect(const std::string& path, Purpose purpose, std::string_view command,
                               Deadline deadline) {
  Result<Connection> connection = Connection::connect(path, deadline);
  if (!connection) return fail(connection.error());
  Result<Client> client = over(std::move(*connection), purpose, command, deadline);
  if (!client && client.error().reason == Reason::timeout) client.error().message += " (" + path + ")";
  if (client) client->path_ = path;
  return client;
}

Result<Client> Client::over(Connection connection, Purpose purpose, std::string_view command,
                            Deadline deadline) {
  if (Status checked = connection.check_peer(); !checked) return fail(checked.error());
  Client client(std::move(connection), 0);
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

Result<std::uint32_t> Client::ask(Body body, Deadline deadline, std::span<const int> fds) {
  const std::uint32_t id = ++last_id_;
  if (Status sent = send_message(connection_, Envelope{id, std::move(body)}, deadline, fds); !sent)
    return fail(sent.error());
  return id;
}

Result<Client::Answer> Client::answer(std::uint32_t id, std::size_t fds, Deadline deadline) {
  Result<std::optional<Message>> message = connection_.receive({kMaxMessageBytes, fds}, deadline);
  if (!message) return fail(message.error().reason == Reason::timeout ? silent() : message.error());
  if (!*message) return fail(hung_up());
  Result<Envelope> envelope = decode((*message)->bytes);
  if (!envelope) return fail(envelope.error());
  if (envelope->id != id)
    return fail(Reason::corrupt, "an answer to request " + std::to_string(envelope->id) + " where one to " +
                                     std::to_string(id) + " was due");
  if (auto* error = std::get_if<ErrorReply>(&envelope->body)) return fail(std::move(error->error));
  return Answer{std::move(envelope->body), std::move((*message)->fds)};
}

std::string Client::peer() const {
  std::string name = server_pid_ > 0 ? "process " + std::to_string(server_pid_) : "the peer";
  return path_.empty() ? name : name + " at " + path_;
}

Error Client::silent() const {
  return Error{Reason::timeout, peer() + " has not answered in time",
               "see whether it is stopped or hangs (its state in ps, its log in the run directory)"};
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

Result<Attachment> Client::attach(Deadline deadline, const AttachRequest& which) {
  const Result<std::uint32_t> id = ask(which, deadline);
  if (!id) return fail(id.error());
  Result<AttachReply> reply = await<AttachReply>(*id, deadline);
  if (!reply) return fail(reply.error());
  if (Status possible = check(*reply); !possible) return fail(possible.error());
  Result<std::vector<Fd>> fds = descriptors(*id, reply->descriptors, deadline);
  if (!fds) return fail(fds.error());
  Attachment attachment;
  attachment.manifest_nbytes = reply->manifest_nbytes;
  attachment.handles = std::move(reply->handles);
  attachment.instance = std::move(reply->instance);
  const auto take = [&](std::size_t first, std::size_t end) {
    const auto at = [&](std::size_t i) {
      return std::make_move_iterator(fds->begin() + static_cast<std::ptrdiff_t>(i));
    };
    return std::vector<Fd>(at(first), at(end));
  };
  const std::size_t first_slab = fds->size() - reply->slabs;
  attachment.manifest = std::move(fds->front());
  attachment.images = take(1, first_slab);
  attachment.slabs = take(first_slab, fds->size());
  return attachment;
}

Result<std::vector<Fd>> Client::descriptors(std::uint32_t id, std::size_t count, Deadline deadline) {
  std::vector<Fd> fds;
  while (fds.size() < count) {
    Result<Answer> part = answer(id, std::min(kMaxMessageFds, count - fds.size()), deadline);
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
  return fds;
}

Result<SlabDescriptor> Client::slab(const SlabRequest& which, Deadline deadline) {
  const Result<std::uint32_t> id = ask(which, deadline);
  if (!id) return fail(id.error());
  Result<Answer> got = answer(*id, 1, deadline);
  if (!got) return fail(got.error());
  const auto* reply = std::get_if<SlabReply>(&got->body);
  if (reply == nullptr) return fail(unexpected(got->body));
  if (got->fds.size() != 1) return fail(Reason::corrupt, "a slab without its descriptor");
  return SlabDescriptor{std::move(got->fds.front()), reply->nbytes};
}

Status Client::copy(const CopyRequest& which, int out, Deadline deadline) {
  const Result<std::uint32_t> id = ask(which, deadline, std::span(&out, 1));
  if (!id) return fail(id.error());
  const Result<CopyReply> reply = await<CopyReply>(*id, deadline);
  if (!reply) return fail(reply.error());
  if (reply->nbytes != which.nbytes)
    return fail(Reason::corrupt, std::to_string(reply->nbytes) + " bytes were copied where " +
                                     std::to_string(which.nbytes) + " were due");
  return {};
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

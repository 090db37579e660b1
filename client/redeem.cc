#include "client/redeem.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <optional>

#include "core/format.h"

namespace wcache {
namespace {

std::optional<std::uint32_t> number_of(std::string_view text) {
  std::uint32_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end) return std::nullopt;
  return value;
}

/// Takes one word with its "key=" into the line; false for one that does not belong there.
bool take(HandleLine& line, std::string_view key, std::string_view value) {
  if (value.empty()) return false;
  if (key == "slab" || key == "rank") {
    const std::optional<std::uint32_t> number = number_of(value);
    if (number) (key == "slab" ? line.slab.slab : line.slab.rank) = *number;
    return number.has_value();
  }
  if (key == "role") line.slab.role = value;
  if (key == "fingerprint") line.slab.fingerprint = value;
  if (key == "socket") line.socket = value;
  return key == "role" || key == "fingerprint" || key == "socket";
}

}  // namespace

Result<HandleLine> parse_handle_line(std::string_view line) {
  HandleLine out;
  bool slab = false;
  std::string_view rest = line;
  while (!rest.empty()) {
    const std::size_t equals = rest.find('=');
    const std::string_view key = rest.substr(0, equals);
    const std::size_t end = key == "socket" ? rest.size() : std::min(rest.find(' '), rest.size());
    if (equals == std::string_view::npos || equals > end ||
        !take(out, key, rest.substr(equals + 1, end - equals - 1)))
      break;
    slab = slab || key == "slab";
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  if (rest.empty() && slab && !out.socket.empty() && out.slab.role.empty() == out.slab.fingerprint.empty())
    return out;
  return fail(Reason::invalid, "'" + printable(line) + "' is no handle",
              "give the text of an ipc_handle attribute of ipc_kind cuda-vmm: slab=0 socket=PATH", "handle");
}

Result<SlabDescriptor> redeem(std::string_view line, Deadline deadline) {
  const Result<HandleLine> handle = parse_handle_line(line);
  if (!handle) return fail(handle.error());
  Result<Client> client = Client::connect(handle->socket, Purpose::client, program_invocation_name, deadline);
  if (!client) return fail(std::move(client.error()));
  return client->slab(handle->slab, deadline);
}

}  // namespace wcache

#include "client/nodes.h"

#include <charconv>
#include <fstream>
#include <iterator>
#include <utility>

#include "core/format.h"

namespace wcache {
namespace {

constexpr std::uint32_t kMostNodes = 4096;
constexpr std::uint32_t kLastPort = 65535;
constexpr std::size_t kLongestToken = 2048;  // it has to fit into a first message
constexpr const char* kTokenVariable = "WCACHE_RENDEZVOUS_TOKEN";

Result<std::uint32_t> number(const std::string& text, std::uint32_t otherwise, std::uint32_t least,
                             std::uint32_t most, const char* option) {
  if (text.empty()) return otherwise;
  std::uint32_t value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code == std::errc() && end == text.data() + text.size() && value >= least && value <= most)
    return value;
  return fail(Reason::invalid, std::string(option) + " is '" + printable(text) + "'",
              "give a whole number from " + std::to_string(least) + " to " + std::to_string(most), option);
}

Result<std::string> read_token(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text;
  if (file) {
    text.resize(kLongestToken + 2);
    file.read(text.data(), static_cast<std::streamsize>(text.size()));
    text.resize(static_cast<std::size_t>(file.gcount()));
  }
  if (!file && !file.eof())
    return fail(Reason::invalid, "cannot read the token file " + printable(path),
                "name a file with one line that all nodes know", "--rendezvous-token-file");
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  if (!text.empty() && text.size() <= kLongestToken) return text;
  return fail(
      Reason::invalid, "the token file " + printable(path) + (text.empty() ? " is empty" : " is too long"),
      "it holds one line of at most " + std::to_string(kLongestToken) + " bytes", "--rendezvous-token-file");
}

Result<std::string> find_token(const NodeWords& words, const RunDir::Environment& environment) {
  if (!words.token_file.empty()) return read_token(words.token_file);
  std::string token = environment(kTokenVariable).value_or("");
  if (token.empty())
    return fail(Reason::invalid, "a group of several nodes needs a token that all of them know",
                std::string("give --rendezvous-token-file, or set ") + kTokenVariable,
                "--rendezvous-token-file");
  if (token.size() <= kLongestToken) return token;
  return fail(Reason::invalid, std::string(kTokenVariable) + " is too long",
              "it has at most " + std::to_string(kLongestToken) + " bytes", "--rendezvous-token-file");
}

/// The two ports; `draft` is 0 where there is no port behind the last one.
struct Ports {
  std::uint32_t target = 0;
  std::uint32_t draft = 0;
};

Result<Ports> find_ports(const NodeWords& words) {
  const Result<std::uint32_t> port =
      number(words.master_port, kDefaultMasterPort, 1, kLastPort, "--master-port");
  if (!port) return fail(port.error());
  const std::uint32_t next = *port == kLastPort ? 0 : *port + 1;
  const Result<std::uint32_t> draft =
      number(words.draft_master_port, next, 1, kLastPort, "--draft-master-port");
  if (!draft) return fail(draft.error());
  if (*draft == *port)
    return fail(Reason::invalid,
                "--draft-master-port is --master-port, " + std::to_string(*port) +
                    ": the target's group and the draft's would meet each other",
                "leave --draft-master-port out, or give another port", "--draft-master-port");
  return Ports{*port, *draft};
}

}  // namespace

Result<NodesPlan> plan_nodes(const NodeWords& words, std::uint32_t tp_size,
                             const RunDir::Environment& environment) {
  const Result<Ports> ports = find_ports(words);
  if (!ports) return fail(ports.error());
  const Result<std::uint32_t> count = number(words.nnodes, 1, 1, kMostNodes, "--nnodes");
  if (!count) return fail(count.error());
  const Result<std::uint32_t> rank = number(words.node_rank, 0, 0, *count - 1, "--node-rank");
  if (!rank) return fail(rank.error());
  NodesPlan nodes;
  nodes.count = *count;
  nodes.rank = *rank;
  if (nodes.single()) return nodes;
  if (tp_size % nodes.count != 0)
    return fail(Reason::invalid,
                "--tensor-parallel-size " + std::to_string(tp_size) + " cannot be shared by " +
                    std::to_string(nodes.count) + " nodes",
                "give the ranks of all nodes together, a multiple of --nnodes", "--tensor-parallel-size");
  if (words.master_addr.empty())
    return fail(Reason::invalid, "with several nodes --master-addr is needed", "give node 0's address",
                "--master-addr");
  if (ports->draft == 0)
    return fail(Reason::invalid, "there is no port behind --master-port 65535", "give --draft-master-port",
                "--draft-master-port");
  Result<std::string> token = find_token(words, environment);
  if (!token) return fail(token.error());
  nodes.master_addr = words.master_addr;
  nodes.port = static_cast<std::uint16_t>(ports->target);
  nodes.draft_port = static_cast<std::uint16_t>(ports->draft);
  nodes.token = std::move(*token);
  return nodes;
}

}  // namespace wcache

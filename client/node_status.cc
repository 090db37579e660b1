#include "client/node_status.h"

#include <algorithm>
#include <array>
#include <map>
#include <thread>
#include <tuple>
#include <utility>

#include "ipc/client.h"

namespace wcache {
namespace {

/// From serving to lost. Of several records of one rank the first counts; a group is what its last rank is.
std::size_t place_of(State state) {
  constexpr std::array kOrder = {State::ready,    State::orphaned, State::filling,
                                 State::starting, State::stale,    State::failed};
  return static_cast<std::size_t>(std::find(kOrder.begin(), kOrder.end(), state) - kOrder.begin());
}

struct Record {
  RunDir::SocketKind told_by = RunDir::SocketKind::rank;
  RankStatus rank;
};

/// The daemon knows itself best, its launcher next; the mount only remembers.
int trust(RunDir::SocketKind kind) {
  switch (kind) {
    case RunDir::SocketKind::rank:
      return 0;
    case RunDir::SocketKind::launcher:
      return 1;
    case RunDir::SocketKind::mount:
      break;
  }
  return 2;
}

bool same_rank(const RankStatus& a, const RankStatus& b) {
  return a.role == b.role && a.rank == b.rank;
}

/// One record a process, the most trusted; newer ones before older ones. What a daemon left behind is
/// described best by its launcher, but who holds it is known to the mount only.
std::vector<RankStatus> one_record_a_process(std::vector<Record> records) {
  std::stable_sort(records.begin(), records.end(),
                   [](const Record& a, const Record& b) { return a.rank.since > b.rank.since; });
  std::stable_sort(records.begin(), records.end(),
                   [](const Record& a, const Record& b) { return trust(a.told_by) < trust(b.told_by); });
  std::vector<RankStatus> ranks;
  for (Record& record : records) {
    const RankStatus& rank = record.rank;
    const auto same = std::find_if(ranks.begin(), ranks.end(), [&](const RankStatus& other) {
      const bool same_process = other.pid != 0 && other.pid == rank.pid;
      const bool same_orphan = other.state == State::orphaned && rank.state == State::orphaned &&
                               other.fingerprint == rank.fingerprint;
      return same_rank(other, rank) && (same_process || same_orphan);
    });
    if (same == ranks.end()) {
      ranks.push_back(std::move(record.rank));
    } else if (record.told_by == RunDir::SocketKind::mount) {
      same->holders = rank.holders;
      same->holders_complete = rank.holders_complete;
    }
  }
  return ranks;
}

using GroupKey = std::pair<std::string, std::string>;

GroupKey key_of(const RankStatus& rank) {
  return {rank.role, rank.fingerprint.empty() ? "source " + rank.source : rank.fingerprint};
}

/// The record of each rank that is nearest to serving.
std::vector<RankStatus> best_of_each_rank(std::vector<RankStatus> records) {
  std::stable_sort(records.begin(), records.end(), [](const RankStatus& a, const RankStatus& b) {
    return std::tuple(a.rank, place_of(a.state)) < std::tuple(b.rank, place_of(b.state));
  });
  const auto again = std::unique(records.begin(), records.end(),
                                 [](const RankStatus& a, const RankStatus& b) { return a.rank == b.rank; });
  records.erase(again, records.end());
  return records;
}

void add_holders(GroupStatus& group, const RankStatus& rank) {
  const bool serves = rank.state == State::ready || rank.state == State::orphaned;
  if (serves && !rank.holders_complete) group.holders_complete = false;
  for (const Holder& holder : rank.holders) {
    const bool known = std::any_of(group.holders.begin(), group.holders.end(),
                                   [&](const Holder& other) { return other.pid == holder.pid; });
    if (!known) group.holders.push_back(holder);
  }
}

GroupStatus group_of(std::vector<RankStatus> records) {
  GroupStatus group;
  group.ranks = best_of_each_rank(std::move(records));
  const RankStatus& worst = *std::max_element(
      group.ranks.begin(), group.ranks.end(),
      [](const RankStatus& a, const RankStatus& b) { return place_of(a.state) < place_of(b.state); });
  group.state = worst.state;
  group.reason = worst.reason;
  group.message = worst.message;
  group.hint = worst.hint;
  std::uint32_t node_ranks = 0;
  for (const RankStatus& rank : group.ranks) {
    node_ranks = std::max(node_ranks, rank.node_ranks);
    const auto take = [](std::string& field, const std::string& value) {
      if (field.empty()) field = value;
    };
    take(group.role, rank.role);
    take(group.name, rank.name);
    take(group.fingerprint, rank.fingerprint);
    take(group.layout, rank.layout);
    take(group.source, rank.source);
    group.tp_size = std::max(group.tp_size, rank.tp_size);
    if (rank.state == group.state) group.since = std::max(group.since, rank.since);
    add_holders(group, rank);
  }
  for (const RankStatus& rank : group.ranks) {
    group.nbytes = group.alike() ? std::max(group.nbytes, rank.nbytes) : group.nbytes + rank.nbytes;
    group.tensors = group.alike() ? std::max(group.tensors, rank.tensors) : group.tensors + rank.tensors;
  }
  if (group.ranks.size() < node_ranks && group.state != State::failed) {
    group.state = State::failed;
    group.reason = to_string(Reason::not_ready);
    group.message = std::to_string(group.ranks.size()) + " of its " + std::to_string(node_ranks) +
                    " ranks are here, nobody knows of the others";
    group.hint = "evict it, and preload it again";
  }
  std::sort(group.holders.begin(), group.holders.end(),
            [](const Holder& a, const Holder& b) { return a.pid < b.pid; });
  return group;
}

/// A try that failed before it had a fingerprint says nothing about a source that is served.
void drop_superseded_failures(std::vector<GroupStatus>& groups) {
  const auto superseded = [&](const GroupStatus& group) {
    return group.state == State::failed && group.fingerprint.empty() &&
           std::any_of(groups.begin(), groups.end(), [&](const GroupStatus& other) {
             return other.state == State::ready && other.role == group.role && other.source == group.source;
           });
  };
  std::vector<GroupStatus> kept;
  for (const GroupStatus& group : groups) {
    if (!superseded(group)) kept.push_back(group);
  }
  groups = std::move(kept);
}

void apply_mount(GroupStatus& group, const MountStatus& mount) {
  const std::string entry = group.role + "/" + group.fingerprint;
  const bool shown = std::find(mount.entries.begin(), mount.entries.end(), entry) != mount.entries.end();
  if (!group.fingerprint.empty() && shown) group.path = mount.path + "/" + entry;
  for (const PairRequest& pair : mount.pairs) {
    if (group.role == "target" && group.fingerprint == pair.target)
      group.draft = mount.path + "/draft0/" + pair.draft;
    if (group.role == "draft0" && group.fingerprint == pair.draft)
      group.target = mount.path + "/target/" + pair.target;
  }
  for (RankStatus& rank : group.ranks) {
    if (!mount.passthrough && rank.tier == "host") rank.survives = false;
  }
}

/// All ranks together; where they hold the same, the one that is furthest behind.
template <class Value>
Value of_ranks(const GroupStatus& group, Value RankStatus::*member) {
  if (group.alike()) return std::ranges::min(group.ranks, {}, &RankStatus::filled).*member;
  Value sum{};
  for (const RankStatus& rank : group.ranks) sum += rank.*member;
  return sum;
}

auto order_of(const GroupStatus& group) {
  return std::tuple<bool, std::string_view, std::string_view, double, std::string_view>(
      group.role != "target", group.role, group.name, group.since, group.fingerprint);
}

}  // namespace

bool GroupStatus::alike() const {
  return tp_size == 1 && ranks.size() > 1;
}

std::uint64_t GroupStatus::filled() const {
  return of_ranks(*this, &RankStatus::filled);
}

double GroupStatus::rate() const {
  return of_ranks(*this, &RankStatus::rate);
}

NodeStatus merge_status(std::string run_dir, std::vector<StatusAnswer> answers) {
  NodeStatus node;
  node.run_dir = std::move(run_dir);
  std::vector<Record> records;
  for (StatusAnswer& answer : answers) {
    if (answer.kind == RunDir::SocketKind::launcher) node.launchers.push_back(answer.reply.pid);
    if (answer.kind == RunDir::SocketKind::mount && !answer.reply.mount.path.empty())
      node.mount = std::move(answer.reply.mount);
    for (RankStatus& rank : answer.reply.ranks) records.push_back({answer.kind, std::move(rank)});
  }
  std::map<GroupKey, std::vector<RankStatus>> by_group;
  for (RankStatus& rank : one_record_a_process(std::move(records)))
    by_group[key_of(rank)].push_back(std::move(rank));
  for (auto& [key, ranks] : by_group) node.groups.push_back(group_of(std::move(ranks)));
  drop_superseded_failures(node.groups);
  if (node.mount) {
    for (GroupStatus& group : node.groups) apply_mount(group, *node.mount);
  }
  std::sort(node.launchers.begin(), node.launchers.end());
  std::sort(node.groups.begin(), node.groups.end(),
            [](const GroupStatus& a, const GroupStatus& b) { return order_of(a) < order_of(b); });
  return node;
}

Result<StatusReply> ask_status(const RunDir::Socket& socket, Deadline deadline) {
  Result<Client> client = Client::connect(socket.path, Purpose::command, "wcache", deadline);
  if (!client) return fail(client.error());
  return client->status(deadline);
}

Result<NodeStatus> collect_status(std::string_view run_dir, std::chrono::milliseconds deadline) {
  const Result<RunDir> directory = RunDir::open(run_dir);
  if (!directory && directory.error().reason == Reason::not_found)
    return merge_status(std::string(run_dir), {});
  if (!directory) return fail(directory.error());
  const Result<std::vector<RunDir::Socket>> sockets = directory->sockets();
  if (!sockets) return fail(sockets.error());

  const Deadline end = deadline_in(deadline);
  std::vector<Result<StatusReply>> replies(sockets->size(), fail(Reason::not_running, "not asked"));
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < sockets->size(); ++i)
    threads.emplace_back([&, i] { replies[i] = ask_status((*sockets)[i], end); });
  for (std::thread& thread : threads) thread.join();

  std::vector<StatusAnswer> answers;
  std::vector<std::string> silent;
  for (std::size_t i = 0; i < sockets->size(); ++i) {
    if (replies[i]) {
      answers.push_back({(*sockets)[i].kind, std::move(*replies[i])});
    } else if (replies[i].error().reason != Reason::not_running) {
      silent.push_back((*sockets)[i].path);
    }
  }
  NodeStatus node = merge_status(directory->path(), std::move(answers));
  node.silent = std::move(silent);
  return node;
}

}  // namespace wcache

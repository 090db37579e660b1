#include "daemon/supervisor/served.h"

#include <algorithm>
#include <string>
#include <utility>

#include "core/manifest.h"

namespace wcache {
namespace {

constexpr std::chrono::seconds kAnswer{2};

template <class Ranks>
std::string devices_of(const Ranks& ranks) {
  std::string text;
  for (const auto& rank : ranks) text += (text.empty() ? "" : ", ") + rank.device_uuid;
  return text;
}

std::string entry_of(const GroupStatus& served) {
  return served.role + "/" + served.fingerprint;
}

/// It will do where each rank is where it was wanted.
std::optional<Error> other_device(const GroupPlan& plan, const GroupStatus& served) {
  const auto is_there = [&](const RankPlan& rank) {
    return std::ranges::any_of(served.ranks, [&](const RankStatus& other) {
      return other.rank == rank.rank && other.device_uuid == rank.device_uuid;
    });
  };
  if (std::ranges::all_of(plan.ranks, is_there)) return std::nullopt;
  return Error{Reason::mismatch,
               "device: " + entry_of(served) + " is served on " + devices_of(served.ranks) + ", not on " +
                   devices_of(plan.ranks),
               "evict it first, or leave --device out to take it where it is", "device"};
}

/// Known once it is filled.
std::optional<Error> other_ipc(DeviceIpc asked, const GroupStatus& served) {
  const std::string_view wanted = asked == DeviceIpc::vmm ? kIpcVmm : kIpcLegacy;
  for (const RankStatus& rank : served.ranks) {
    if (rank.ipc_kind.empty() || rank.ipc_kind == wanted) continue;
    return Error{
        Reason::mismatch,
        "ipc: " + entry_of(served) + " is served as " + rank.ipc_kind + ", not as " + std::string(wanted),
        "evict it first, or leave --ipc out to take it as it is", "ipc"};
  }
  return std::nullopt;
}

}  // namespace

std::optional<Error> mismatch_of(const LaunchPlan& launch, const GroupPlan& plan, const GroupStatus& served) {
  std::optional<Error> error;
  if (launch.device_asked) error = other_device(plan, served);
  if (!error && launch.ipc_asked) error = other_ipc(*launch.ipc_asked, served);
  return error;
}

std::vector<RankStatus> serving_ranks(const RunDir& run_dir) {
  std::vector<RankStatus> ranks;
  const Result<std::vector<RunDir::Socket>> sockets = run_dir.sockets();
  if (!sockets) return ranks;
  const Deadline deadline = deadline_in(kAnswer);
  for (const RunDir::Socket& socket : *sockets) {
    if (socket.kind != RunDir::SocketKind::rank) continue;
    Result<StatusReply> reply = ask_status(socket, deadline);
    if (!reply) continue;
    for (RankStatus& rank : reply->ranks) {
      if (rank.state == State::ready) ranks.push_back(std::move(rank));
    }
  }
  return ranks;
}

}  // namespace wcache

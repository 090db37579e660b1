// Launcher: which group takes memory when, and what becomes of one that finds too little.
#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>

#include "core/manifest.h"
#include "daemon/budget.h"
#include "daemon/supervisor/launcher.h"
#include "ipc/client.h"

namespace wcache {
namespace {

constexpr std::chrono::seconds kLook{10};  // for a look at the node
constexpr std::chrono::milliseconds kApart{250};
constexpr unsigned kMostStarts = 6;
constexpr unsigned kStartsBesideOthers = 3;
constexpr std::chrono::seconds kDropOrphan{5};

template <class A, class B>
bool share_device(const A& ranks, const B& others) {
  return std::ranges::any_of(ranks, [&](const auto& rank) {
    return std::ranges::any_of(others,
                               [&](const auto& other) { return other.device_uuid == rank.device_uuid; });
  });
}

bool on_device(const GroupPlan& plan) {
  return std::ranges::any_of(plan.ranks, [](const RankPlan& rank) { return rank.ipc.has_value(); });
}

std::uint64_t host_memory(const RankPlan& rank) {
  return rank.memory - rank.device_memory;
}

/// Somebody else's daemons, which have or get memory for the same files.
const GroupStatus* find_rival(const NodeStatus& node, const GroupPlan& plan) {
  const auto found = std::ranges::find_if(node.groups, [&](const GroupStatus& other) {
    const bool lives =
        other.state == State::ready || other.state == State::filling || other.state == State::starting;
    return lives && other.role == to_string(plan.role) && other.source == plan.source;
  });
  return found == node.groups.end() ? nullptr : &*found;
}

/// What the mount holds where this group is to go, of the same entry or, where its fingerprint is not known
/// yet, of the same files.
const GroupStatus* find_orphan(const NodeStatus& node, const GroupPlan& plan, const std::string& print) {
  const auto found = std::ranges::find_if(node.groups, [&](const GroupStatus& other) {
    const bool same = print.empty() ? other.source == plan.source : other.fingerprint == print;
    const bool gone =
        std::ranges::any_of(other.ranks, [](const RankStatus& rank) { return rank.ipc_kind == kIpcLegacy; });
    return other.state == State::orphaned && other.role == to_string(plan.role) && same && !gone &&
           share_device(plan.ranks, other.ranks);
  });
  return found == node.groups.end() ? nullptr : &*found;
}

}  // namespace

/// The host memory that a group which is about to start will take, and what others have not taken yet.
std::uint64_t Launcher::memory_to_come(const Member& member) const {
  std::uint64_t sum = 0;
  for (const RankPlan& rank : member.group.plan().ranks) sum += host_memory(rank);
  for (const Member& other : members_) {
    if (&other == &member || other.waits || other.group.phase() != GroupPhase::pending) continue;
    const std::vector<RankStatus> records = other.group.records();
    for (std::size_t i = 0; i < records.size(); ++i) {
      if (records[i].state == State::starting) sum += host_memory(other.group.plan().ranks[i]);
    }
  }
  return sum;
}

/// Whether everything that it will take of its devices is taken, or will never be.
bool Launcher::has_memory(const Member& member) {
  const GroupPhase phase = member.group.phase();
  switch (phase) {
    case GroupPhase::pending:
      return !member.waits && std::ranges::none_of(member.group.records(), [](const RankStatus& record) {
        return record.state == State::starting;
      });
    case GroupPhase::elsewhere:
      return member.said == phase || member.filled_elsewhere;
    case GroupPhase::failed:
      return member.said == phase;  // until then it may begin again
    default:
      return true;
  }
}

/// Whether an earlier group, which comes first where memory is limited, has yet to take its share of a device
/// that this one is to be on. How much is free there is known to daemons only.
bool Launcher::must_wait(const Member& member) const {
  if (!on_device(member.group.plan())) return false;
  for (const Member& other : members_) {
    if (&other == &member) return false;
    if (on_device(other.group.plan()) && share_device(other.group.plan().ranks, member.group.plan().ranks) &&
        !has_memory(other))
      return true;
  }
  return false;
}

/// Whether a failed group is not lost yet: it found too little memory, and somebody fills the same files, or
/// the mount holds them for nobody.
bool Launcher::undecided(const Member& member) const {
  return member.group.phase() == GroupPhase::failed && member.said != GroupPhase::failed &&
         member.group.error().reason == Reason::over_budget && !member.group.plan().refusal &&
         plan_.nodes.single() && member.starts < kMostStarts &&
         !(member.deadline && Clock::now() >= *member.deadline);
}

/// Looks after an undecided group. True while there is hope: it waits, or has begun again.
bool Launcher::begins_again(Member& member, const Sighting& seen) {
  if (!undecided(member)) return false;
  const Clock::time_point now = Clock::now();
  if (!member.short_since) member.short_since = now;
  if (!seen.node || seen.began < *member.short_since) return now - *member.short_since < kLook;
  const GroupStatus* rival = find_rival(*seen.node, member.group.plan());
  Clock::duration pause{};
  if (rival != nullptr && rival->state != State::ready) {
    member.gets_free = true;
    return true;
  }
  if (rival != nullptr) {
    // Its files are remembered now, so that the daemon knows before it takes memory whose entry it is.
    if (std::exchange(member.tried_beside, true)) {
      add_hint(member, rival->role + "/" + rival->fingerprint +
                           " has the same path, but whether it has the same bytes is not remembered");
      return false;
    }
  } else if (member.gets_free) {
    pause = kApart * (1U << member.starts);  // it may take a moment
  } else if (const GroupStatus* orphan =
                 find_orphan(*seen.node, member.group.plan(), member.group.fingerprint())) {
    member.gets_free = drop_orphan_of(member, *orphan);
    if (!member.gets_free) return false;
  } else if (member.starts < kStartsBesideOthers && seen.node->launchers.size() > 1) {
    // Two that began at the same moment may each have had a part of what one needs, or one the memory and the
    // other one the lock.
    pause = kApart * ((1U << member.starts) + static_cast<unsigned>(getpid()) % 4);
  } else {
    return false;
  }
  if (now - *member.short_since < pause) return true;
  member.short_since.reset();
  start(member);
  return true;
}

/// Frees what the mount holds of an entry that is about to be replaced. Where somebody uses it, the error
/// says who.
bool Launcher::drop_orphan_of(Member& member, const GroupStatus& orphan) {
  Result<Client> mount = Client::connect(plan_.run_dir.mount_socket(), Purpose::launcher, "wcache preload",
                                         deadline_in(kDropOrphan));
  if (!mount) return false;
  const Result<EvictReply> reply =
      mount->request<EvictReply>(EvictRequest{orphan.role, orphan.fingerprint}, deadline_in(kDropOrphan));
  const std::string entry = orphan.role + "/" + orphan.fingerprint;
  if (reply) {
    member.dropped = Clock::now();
    console_.note(entry + " was held by the mount alone, and there is not enough memory beside it: dropped");
    return true;
  }
  if (reply.error().reason != Reason::busy) return false;
  add_hint(member, "what a daemon that died left behind has memory there: " + reply.error().message +
                       ", stop what uses it");
  return false;
}

/// Of a failure. A device that nobody asked for and that is too small leaves host memory.
std::string Launcher::hint_of(const Member& member) const {
  const GroupPlan& plan = member.group.plan();
  const Error& error = member.group.error();
  if (error.reason != Reason::over_budget || plan.refusal || plan_.device_asked || !on_device(plan))
    return error.hint;
  std::uint64_t needed = 0;
  for (const RankPlan& rank : plan.ranks) needed += rank.memory;
  if (!check_budget(needed, std::nullopt, machine_memory_limits())) return error.hint;
  return error.hint + (error.hint.empty() ? "" : "; or ") +
         "give --device host: this machine's memory has room";
}

void Launcher::add_hint(Member& member, const std::string& hint) {
  Error error = member.group.error();
  error.hint = hint + (error.hint.empty() ? "" : "; or " + error.hint);
  member.group.abandon(std::move(error));
}

}  // namespace wcache

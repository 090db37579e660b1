#include "daemon/supervisor/agreement.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <iterator>
#include <mutex>
#include <utility>
#include <variant>

#include "core/fd.h"

namespace wcache {
namespace {

constexpr std::chrono::seconds kMeetingTime{600};  // where no --timeout is given

/// How other nodes name this one: "host, node 1, ranks 2-3".
std::string label_of(const GroupPlan& plan, const NodesPlan& nodes) {
  std::array<char, 256> host{};
  if (gethostname(host.data(), host.size() - 1) != 0) host[0] = '?';
  std::string label = std::string(host.data()) + ", node " + std::to_string(nodes.rank);
  if (plan.tp_size == 1) return label;
  const std::string first = std::to_string(plan.ranks.front().rank);
  const std::string last = std::to_string(plan.ranks.back().rank);
  return label + (first == last ? ", rank " + first : ", ranks " + first + "-" + last);
}

RendezvousOptions meeting_of(const GroupPlan& plan, const LaunchPlan& launch) {
  RendezvousOptions options;
  options.nnodes = launch.nodes.count;
  options.node_rank = launch.nodes.rank;
  options.master_addr = launch.nodes.master_addr;
  options.port = plan.port;
  options.token = launch.nodes.token;
  options.role = plan.role;
  options.label = label_of(plan, launch.nodes);
  options.timeout = launch.timeout.value_or(kMeetingTime);
  return options;
}

}  // namespace

/// Filled by the thread of the meeting.
struct Agreement::Inbox {
  const Fd changed = Fd::adopt(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  std::mutex mutex;  // guards the rest; a leaf
  std::vector<RendezvousEvent> events;
  bool over = false;

  void put(RendezvousEvent event) {
    {
      const std::lock_guard lock(mutex);
      over = over || !std::holds_alternative<GroupAgreed>(event);
      events.push_back(std::move(event));
    }
    eventfd_write(changed.get(), 1);
  }
};

Agreement::Agreement(const GroupPlan& plan)
    : role_(plan.role), layout_(plan.layout), tp_size_(plan.tp_size), parts_(plan.ranks.size()) {
  for (const RankPlan& rank : plan.ranks) ranks_.push_back(rank.rank);
}

Result<std::unique_ptr<Agreement>> Agreement::start(const GroupPlan& plan, const LaunchPlan& launch) {
  std::unique_ptr<Agreement> agreement(new Agreement(plan));
  if (plan.port == 0) return agreement;
  agreement->inbox_ = std::make_shared<Inbox>();
  if (!agreement->inbox_->changed) return wcache::fail_errno("eventfd", errno);
  Result<Rendezvous> meeting =
      Rendezvous::start(meeting_of(plan, launch),
                        [inbox = agreement->inbox_](RendezvousEvent event) { inbox->put(std::move(event)); });
  if (!meeting) return wcache::fail(std::move(meeting.error()));
  agreement->meeting_ = std::move(*meeting);
  return agreement;
}

void Agreement::add_files(std::size_t rank, GroupFiles page) {
  Part& part = parts_.at(rank);
  if (part.complete) return;
  std::move(page.files.begin(), page.files.end(), std::back_inserter(part.files));
  part.complete = !page.more;
}

void Agreement::sealed(std::size_t rank) {
  parts_.at(rank).sealed = true;
}

void Agreement::served() {
  for (Part& part : parts_) part.sealed = true;
}

Result<Key> Agreement::merge() const {
  std::vector<Key> keys;
  std::vector<std::string> labels;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    keys.push_back(Key{role_, layout_, tp_size_, parts_[i].files});
    labels.push_back("rank " + std::to_string(ranks_[i]));
  }
  return merge_parts(keys, labels);
}

Agreement::Step Agreement::step() {
  Step step;
  const auto all = [&](bool Part::*what) {
    return std::all_of(parts_.begin(), parts_.end(), [&](const Part& part) { return part.*what; });
  };
  if (!contributed_ && all(&Part::complete)) {
    contributed_ = true;
    Result<Key> key = merge();
    if (!key)
      step.failed = std::move(key.error());
    else if (meeting_)
      meeting_->contribute(std::move(*key));
    else
      step.agreed = std::move(*key);
  }
  take_events(step);
  agreed_ = agreed_ || step.agreed.has_value();
  if (!said_ready_ && agreed_ && all(&Part::sealed)) {
    said_ready_ = true;
    if (meeting_)
      meeting_->ready();
    else
      step.published = true;
  }
  published_ = published_ || step.published;
  return step;
}

void Agreement::take_events(Step& step) {
  if (!inbox_) return;
  std::vector<RendezvousEvent> events;
  {
    const std::lock_guard lock(inbox_->mutex);
    events.swap(inbox_->events);
  }
  eventfd_t count = 0;
  eventfd_read(inbox_->changed.get(), &count);
  for (RendezvousEvent& event : events) {
    if (auto* agreed = std::get_if<GroupAgreed>(&event)) step.agreed = std::move(agreed->key);
    if (std::holds_alternative<GroupReady>(event)) step.published = true;
    if (auto* failed = std::get_if<GroupFailed>(&event); failed != nullptr && !step.failed)
      step.failed = std::move(failed->error);
  }
}

void Agreement::fail(const Error& error) {
  if (meeting_ && !over()) meeting_->fail_group(error);
}

bool Agreement::over() const {
  if (!inbox_) return true;
  const std::lock_guard lock(inbox_->mutex);
  return inbox_->over;
}

int Agreement::fd() const {
  return inbox_ ? inbox_->changed.get() : -1;
}

std::string Agreement::waits_for() const {
  if (!contributed_) return {};
  if (published_) return "publishing";
  const bool here = agreed_ && !said_ready_;
  return here || !meeting_ ? "sealing" : "waiting for the other nodes";
}

}  // namespace wcache

#include "daemon/fill/fill.h"

#include <algorithm>
#include <exception>
#include <memory>
#include <thread>
#include <utility>

#include "daemon/fill/host_sink.h"
#include "daemon/fill/rate_meter.h"
#include "daemon/fill/read_plan.h"
#include "daemon/fill/sink.h"
#include "daemon/fill/sources.h"
#include "daemon/fill/worker.h"

namespace wcache {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kRateWindow{2'000};
/// More threads than this do not make a disk faster, whatever the number of processors.
constexpr unsigned kMostWorkers = 8;
constexpr unsigned kBlockingWorkers = 16;

unsigned worker_count(const FillOptions& options, bool blocking, std::size_t reads) {
  unsigned count = options.workers;
  if (count == 0)
    count = blocking ? kBlockingWorkers
                     : std::min(kMostWorkers, std::max(1u, std::thread::hardware_concurrency()));
  count = std::min(count, std::max(1u, options.depth));
  return static_cast<unsigned>(std::min<std::size_t>(count, reads));
}

/// One worker at least; as many more as the machine grants queues.
Result<std::vector<FillWorker>> make_workers(FillWork& work, FillSink& sink, Disk& disk) {
  const unsigned count = worker_count(work.options, disk.blocking(), work.plan.reads.size());
  const unsigned depth = disk.blocking() || count == 0 ? 1 : std::max(1u, work.options.depth / count);
  std::vector<FillWorker> workers;
  for (unsigned i = 0; i < count; ++i) {
    auto queue = disk.queue(depth);
    if (!queue && workers.empty()) return fail(queue.error());
    if (!queue) break;
    auto lane = sink.make_lane(work.plan, depth);
    if (!lane) return fail(lane.error());
    workers.emplace_back(work, std::move(*lane), std::move(*queue), depth);
  }
  return workers;
}

/// Tells of the progress until every worker has ended.
void watch(FillWork& work, std::uint64_t total, const ProgressCallback& progress) {
  RateMeter meter(kRateWindow);
  const auto tell = [&] {
    const std::uint64_t filled = work.filled;
    const double rate = meter.add(Clock::now(), filled);
    if (progress) progress({filled, total, rate});
  };
  tell();
  std::unique_lock lock(work.mutex);
  while (
      !work.worker_ended.wait_for(lock, work.options.progress_interval, [&] { return work.running == 0; })) {
    lock.unlock();
    tell();
    lock.lock();
  }
  lock.unlock();
  tell();
}

Status run_workers(FillWork& work, FillSink& sink, Disk& disk, std::uint64_t total,
                   const ProgressCallback& progress) {
  auto workers = make_workers(work, sink, disk);
  if (!workers) return fail(workers.error());
  std::vector<std::jthread> threads;
  work.running = workers->size();
  for (FillWorker& worker : *workers) {
    try {
      threads.emplace_back([&worker] { worker.run(); });
    } catch (const std::exception& e) {
      work.fail_with(Error{Reason::io, std::string("starting a thread: ") + e.what()});
      const std::lock_guard lock(work.mutex);
      --work.running;
    }
  }
  watch(work, total, progress);
  threads.clear();
  if (work.error) return fail(*work.error);
  if (work.filled == total) return {};
  if (work.stop.stop_requested()) return fail(Reason::timeout, "the fill was stopped");
  return fail(Reason::internal, std::to_string(total - work.filled) + " bytes were never read");
}

Status check_remembered(const EntryPlan& plan, const std::vector<std::optional<Digest>>& remembered,
                        const std::vector<ImageDigests>& digests) {
  for (std::size_t i = 0; i < remembered.size() && i < digests.size(); ++i)
    if (remembered[i] && *remembered[i] != digests[i].file)
      return fail(Reason::stale,
                  plan.images[i].name + " has other content than was remembered for its size and times: " +
                      to_hex(*remembered[i]) + " then, " + to_hex(digests[i].file) + " now",
                  "its remembered digest is forgotten; try again");
  return {};
}

void tell_path(FillReport& report, const Sources& sources, bool blocking, const std::string& disk_note) {
  report.note = disk_note.empty() ? sources.buffered_note() : disk_note;
  if (blocking)
    report.path = FillPath::threads;
  else if (!sources.buffered_note().empty())
    report.path = FillPath::io_uring_buffered;
}

Result<FillReport> fill_checked(FillSink& sink, Disk& disk, const FillOptions& options,
                                const ProgressCallback& progress, std::stop_token stop) {
  const auto began = Clock::now();
  const EntryPlan& plan = sink.plan();
  auto sources = Sources::open(plan, disk);
  if (!sources) return fail(sources.error());
  auto reads = sink.plan_reads((*sources)->alignments());
  if (!reads) return fail(reads.error());

  FillWork work{.plan = *reads, .sources = **sources, .options = options, .stop = std::move(stop)};
  const auto heads = sink.place_heads(options.stall_timeout, work.stop);
  if (!heads) return fail(heads.error());
  work.filled = *heads;
  const auto done = run_workers(work, sink, disk, plan.nbytes(), progress);
  (*sources)->drop_caches();
  if (!done) return fail(done.error());
  if (auto s = (*sources)->check_unchanged(); !s) return fail(s.error());

  FillReport report;
  report.digests = sink.digests();
  if (auto s = check_remembered(plan, options.remembered, report.digests); !s) return fail(s.error());
  tell_path(report, **sources, disk.blocking(), options.note);
  report.nbytes = plan.nbytes();
  report.read_nbytes = reads->read_nbytes();
  report.seconds = std::chrono::duration<double>(Clock::now() - began).count();
  return report;
}

}  // namespace

FillBounds bounds_of(const FillOptions& options) {
  const unsigned workers = options.workers > 0 ? options.workers : std::max(kMostWorkers, kBlockingWorkers);
  return {workers, std::max(workers, options.depth)};
}

std::string_view to_string(FillPath path) {
  switch (path) {
    case FillPath::io_uring_direct:
      return "io_uring-direct";
    case FillPath::io_uring_buffered:
      return "io_uring-buffered";
    case FillPath::threads:
      return "threads";
  }
  return "threads";
}

Result<FillReport> fill(FillSink& sink, Disk& disk, const FillOptions& options,
                        const ProgressCallback& progress, std::stop_token stop) {
  try {
    return fill_checked(sink, disk, options, progress, std::move(stop));
  } catch (const std::exception& e) {
    return fail(Reason::internal, std::string("filling: ") + e.what());
  }
}

Result<FillReport> fill(const EntryPlan& plan, std::span<const std::span<std::byte>> images, Disk& disk,
                        const FillOptions& options, const ProgressCallback& progress, std::stop_token stop) {
  auto sink = HostSink::create(plan, images);
  if (!sink) return fail(sink.error());
  return fill(**sink, disk, options, progress, std::move(stop));
}

}  // namespace wcache

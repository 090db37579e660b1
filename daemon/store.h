#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "core/digest_cache.h"
#include "core/entry_plan.h"
#include "core/key.h"
#include "core/manifest.h"
#include "core/result.h"
#include "daemon/device_entry.h"
#include "daemon/fill/fill.h"
#include "daemon/memory/arena.h"
#include "draftroute/group_request.h"

namespace wcache {

/// One rank's part of an entry, in memory that nobody can change any more.
struct StoredEntry {
  EntryPlan plan;
  std::vector<ImageDigests> digests;  ///< in the plan's order
  Fingerprint fingerprint;
  SealedArena memory;
  std::uint64_t manifest_nbytes = 0;
  Digest manifest_digest;
  FillPath fill_path = FillPath::io_uring_direct;
  std::string fill_note;  ///< why it was not io_uring-direct; empty when it was
  /// Where the weights are, for an entry on a device: their descriptors in `memory` are then empty. nullptr:
  /// in host memory.
  std::unique_ptr<DeviceEntry> device = nullptr;
};

/// What is told on the way, on the thread that loads.
struct LoadEvents {
  std::function<void(const EntryPlan&)> planned;
  /// The fingerprint is known: before anything is read when all digests are remembered, else after the fill.
  /// An error ends the load (somebody else serves it already).
  std::function<Status(const Fingerprint&)> known;
  std::function<void(const FillProgress&)> progress;
  /// Of a grouped rank, after its fill: what it holds, for what the whole group holds. Blocks until every
  /// rank on every node has said so.
  std::function<Result<Key>(const Key&)> agree = {};
};

struct CudaTarget;

/// Memory that an entry will take.
struct MemoryNeed {
  std::uint64_t host_nbytes = 0;
  std::uint64_t device_nbytes = 0;
  std::uint64_t staging_nbytes = 0;  ///< of the host's, while it is filled
};

/// What loading needs from the machine.
struct LoadMachine {
  const MemoryKernel& kernel;
  Disk& disk;
  std::string disk_note;  ///< MachineDisk::note
  DigestCache& cache;
  /// Refuses what does not fit the limits of the host, naming the limit; before the first byte is allocated.
  /// What is free on the device is looked at by itself.
  std::function<Status(const MemoryNeed&)> budget;
  const CudaTarget* device = nullptr;  ///< where the weights go; nullptr: into host memory
  std::chrono::milliseconds stall_timeout = FillOptions{}.stall_timeout;
};

struct LoadRequest {
  draftroute::GroupRequest group;
  std::uint32_t rank = 0;
  std::uint32_t node_ranks = 1;
  bool grouped = false;  ///< LoadEvents::agree settles the fingerprint
  std::string name;      ///< for by-name; empty: the checkpoint's own
  Placement placement;
};

/// One entry's life up to the point where it may be published: plan, memory, fill, digests, fingerprint,
/// manifest, seal. On any error nothing remains. Blocks; errors name file, offset and cause. Stopped:
/// timeout.
Result<StoredEntry> load_entry(const LoadRequest& request, const LoadMachine& machine,
                               const LoadEvents& events, std::stop_token stop);

}  // namespace wcache

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/entry_plan.h"
#include "core/result.h"
#include "daemon/fill/disk.h"

namespace wcache {

/// The open source files of a fill. Safe for concurrent use once opened. Borrows plan and disk.
class Sources {
 public:
  /// Opens every source that the plan reads and checks that it is what the plan saw (Reason::stale).
  static Result<std::unique_ptr<Sources>> open(const EntryPlan& plan, Disk& disk);

  /// Of each source of the plan, for plan_reads(); 1 for those that are not read.
  std::vector<std::uint64_t> alignments() const;

  const DiskFile* file(std::uint32_t source) const { return entries_[source].current.load(); }
  const std::string& path(std::uint32_t source) const { return entries_[source].path; }
  std::uint64_t alignment(std::uint32_t source) const { return entries_[source].alignment; }

  /// A read through `refused` was found impossible: from now on this source is read through the page cache.
  /// Reads in flight keep their file. False when `refused` was buffered already, so that the refusal stands.
  Result<bool> make_buffered(std::uint32_t source, const DiskFile* refused);

  /// Buffered sources only: lets go of the pages behind a read.
  void drop_cache(std::uint32_t source, std::uint64_t offset, std::uint64_t nbytes);

  /// Reason::stale, naming what changed, when a source is not any more what the plan saw.
  Status check_unchanged(std::uint32_t source) const;
  Status check_unchanged() const;

  /// Why sources are buffered; empty when none is.
  std::string buffered_note() const;

  /// To be called when all is read: lets go of what the page cache still holds of buffered sources.
  void drop_caches();

 private:
  struct Entry {
    std::string path;
    FileIdentity identity;
    std::uint64_t alignment = 1;
    std::unique_ptr<DiskFile> first;
    std::unique_ptr<DiskFile> second;  // buffered, after `first` was found not to read
    std::atomic<DiskFile*> current = nullptr;
    std::atomic<bool> buffered = false;
  };

  Sources(Disk& disk, std::size_t count) : disk_(disk), entries_(count) {}
  Status open_entry(Entry& entry);
  void note_buffered(Entry& entry, const std::string& why);

  Disk& disk_;
  std::vector<Entry> entries_;
  mutable std::mutex mutex_;  // guards note_ and each entry's `second`
  std::string note_;
};

}  // namespace wcache

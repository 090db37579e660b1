#pragma once

#include <spdlog/sinks/null_sink.h>

#include <cstdio>
#include <cstdlib>
#include <memory>

#include "fs/entry.h"
#include "fs/part.h"
#include "tests/support/test_entry.h"

namespace wcache::test {

inline spdlog::logger& quiet_log() {
  static spdlog::logger log{"test", std::make_shared<spdlog::sinks::null_sink_mt>()};
  return log;
}

/// What a daemon hands out, all duplicates.
inline Attachment attachment_of(const TestEntry& entry) {
  return {entry.manifest(),    entry.manifest_nbytes, entry.images(),
          entry.slab_copies(), entry.handles,         entry.instance};
}

/// What wcachefs makes of an entry that it was handed. Sealed memfds, so that no rights are needed.
inline Result<std::shared_ptr<const Part>> try_part(std::vector<TestFile> files,
                                                    TestEntryOptions options = {}) {
  options.memfd = true;
  const TestEntry made = make_test_entry(std::move(files), options);
  return Part::make(attachment_of(made), 4711, "/run/wcache/test.sock", quiet_log());
}

inline std::shared_ptr<const Part> part_of(std::vector<TestFile> files, TestEntryOptions options = {}) {
  Result<std::shared_ptr<const Part>> part = try_part(std::move(files), options);
  if (part) return *part;
  std::fprintf(stderr, "part: %s\n", part.error().message.c_str());
  std::abort();
}

inline std::shared_ptr<Entry> entry_of(std::vector<TestFile> files, TestEntryOptions options = {}) {
  Result<std::shared_ptr<Entry>> entry = Entry::make({part_of(std::move(files), options)}, 1000.5);
  if (entry) return *entry;
  std::fprintf(stderr, "entry: %s\n", entry.error().message.c_str());
  std::abort();
}

}  // namespace wcache::test

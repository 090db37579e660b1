#include "fs/entry_holders.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

namespace wcache {

MappingScan mappings_of(const Entry& entry) {
  MappingSearch search;
  search.path_part = "/" + entry.path() + "/";
  search.except = {getpid()};
  for (const auto& part : entry.parts()) {
    if (entry.state() == State::ready)
      search.except.insert(part->daemon_pid());  // else it may be anybody's now
    for (std::size_t row = 0; row < part->manifest().file_count(); ++row) {
      struct stat st {};
      if (fstat(part->image_fd(row), &st) == 0) search.images.emplace(st.st_dev, st.st_ino);
    }
  }
  return scan_mappings("/proc", search);
}

EntryHolders holders_of(const Entry& entry, OpenFiles& open_files, const Mappings& mappings) {
  MappingScan mapped = mappings(entry);
  EntryHolders all{open_files.holders(entry), mapped.complete};
  for (Holder& holder : mapped.holders)
    if (std::none_of(all.holders.begin(), all.holders.end(),
                     [&](const Holder& known) { return known.pid == holder.pid; }))
      all.holders.push_back(std::move(holder));
  return all;
}

}  // namespace wcache

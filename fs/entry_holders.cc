#include "fs/entry_holders.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "ipc/client.h"

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

namespace {

constexpr std::chrono::seconds kAnswerWait{2};

void add(EntryHolders& all, std::vector<Holder> holders) {
  for (Holder& holder : holders)
    if (std::none_of(all.holders.begin(), all.holders.end(),
                     [&](const Holder& known) { return known.pid == holder.pid; }))
      all.holders.push_back(std::move(holder));
}

}  // namespace

std::optional<EntryHolders> daemons_holders(const Entry& entry) {
  EntryHolders all;
  const Deadline deadline = deadline_in(kAnswerWait);
  for (const auto& part : entry.parts()) {
    Result<Client> daemon = Client::connect(part->socket(), Purpose::command, "wcachefs", deadline);
    if (!daemon) return std::nullopt;
    Result<StatusReply> status = daemon->status(deadline);
    if (!status || status->ranks.size() != 1) return std::nullopt;
    RankStatus& rank = status->ranks.front();
    all.complete = all.complete && rank.holders_complete;
    add(all, std::move(rank.holders));
  }
  return all;
}

EntryHolders holders_of(const Entry& entry, OpenFiles& open_files, const Mappings& mappings) {
  MappingScan mapped = mappings(entry);
  EntryHolders all{open_files.holders(entry), mapped.complete};
  add(all, std::move(mapped.holders));
  return all;
}

}  // namespace wcache

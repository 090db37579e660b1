#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "daemon/holders.h"
#include "fs/entry.h"
#include "fs/open_files.h"
#include "ipc/protocol.h"

namespace wcache {

/// Who maps an entry's memory. Reads every process's maps: takes its time.
using Mappings = std::function<MappingScan(const Entry& entry)>;

/// The real one. Ourselves, who map every image, and the daemons do not count.
MappingScan mappings_of(const Entry& entry);

struct EntryHolders {
  std::vector<Holder> holders;  ///< by open files or mappings, each process once
  bool complete = true;         ///< false where some process's maps could not be read
};

/// What the entry's daemons know: attached clients too. nullopt unless each of them answers, soon. Blocks.
using AskDaemons = std::function<std::optional<EntryHolders>(const Entry& entry)>;
std::optional<EntryHolders> daemons_holders(const Entry& entry);

/// What can be known here.
EntryHolders holders_of(const Entry& entry, OpenFiles& open_files, const Mappings& mappings);

}  // namespace wcache

#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/entry_plan.h"
#include "core/fd.h"

namespace wcache {

/// Opens a source and checks that it is what the plan says. Reason::stale naming the file when it is not.
Result<Fd> open_source(const SourceFile& source);

/// Checks that an open source still is what the plan says; Reason::stale naming the file and `offset` (what
/// was read of it so far) when it is not.
Status check_source(int fd, const SourceFile& source, std::uint64_t offset);

/// Whether a source is what the plan says, and whether that can be believed.
struct SourceState {
  std::optional<Error> changed;  ///< why it is not, or cannot be opened
  bool trustworthy = false;      ///< its file system keeps a ctime that no user can set

  bool can_be_remembered() const { return !changed && trustworthy; }
};

/// Of each of plan.sources, by opening it: what a network file system then tells is not older than the open.
std::vector<SourceState> states_of(const EntryPlan& plan);

/// Everything that an image's digest depends on, in 128 bits: identity and hub blob name of its sources,
/// where its bytes come from, how it is cut into segments, and the version of the digest tree.
Digest subject_of(const EntryPlan& plan, const ImagePlan& image);

}  // namespace wcache

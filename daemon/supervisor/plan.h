#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/entry_plan.h"
#include "core/result.h"
#include "ipc/run_dir.h"

namespace wcache {

struct RankPlan {
  std::uint32_t rank = 0;
  std::string device_uuid;  ///< "HOST-0"
};

/// One group of daemons to start.
struct GroupPlan {
  Role role = Role::target;
  std::string model;               ///< absolute path of the checkpoint
  std::string name;                ///< for by-name/
  std::uint64_t nbytes = 0;        ///< of the checkpoint's served files, for the first lines of progress
  std::uint64_t memory_limit = 0;  ///< for each rank, bytes; 0: none
  std::string fingerprint;         ///< known already from the digest cache; else empty
  std::vector<RankPlan> ranks;
};

struct MountPlan {
  std::string path;     ///< absolute, symbolic links resolved
  bool chosen = false;  ///< by the user; otherwise a mount that is already there elsewhere is taken as it is
  bool allow_other = false;
};

/// What one launcher is to do.
struct LaunchPlan {
  RunDir run_dir;
  std::vector<GroupPlan> groups;
  std::optional<MountPlan> mount;               ///< nullopt: daemons only
  std::optional<std::chrono::seconds> timeout;  ///< for each group to be ready
  std::string device = "host";
  std::string log_level;  ///< handed on to the daemons; empty: theirs
  std::string wcached;    ///< programs, by path
  std::string wcachefs;
};

}  // namespace wcache

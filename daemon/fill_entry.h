#pragma once

#include <span>
#include <stop_token>

#include "core/entry_plan.h"
#include "core/result.h"
#include "daemon/fill/fill.h"

namespace wcache {

/// Fills a whole entry: all of it into host memory (`images`: Arena::images()), or the weights through
/// `device`, whose plan is weights_of(plan), and the others into host memory. Progress and report are those
/// of the whole; errors and the rest as of fill().
Result<FillReport> fill_entry(const EntryPlan& plan, std::span<const std::span<std::byte>> images,
                              FillSink* device, Disk& disk, const FillOptions& options,
                              const ProgressCallback& progress, std::stop_token stop);

}  // namespace wcache

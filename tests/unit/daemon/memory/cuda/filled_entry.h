#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <stop_token>
#include <utility>
#include <vector>

#include "core/entry_plan.h"
#include "core/slab_plan.h"
#include "daemon/device_entry.h"
#include "daemon/fill/fill.h"
#include "daemon/memory/cuda/loading.h"
#include "tests/unit/daemon/fill/fake_disk.h"
#include "tests/unit/daemon/fill/random_draft.h"

namespace wcache::testing {

/// An entry on a device, and how it came there.
struct FilledEntry {
  std::unique_ptr<DeviceEntry> entry;
  FillReport report;
  SlabPlan slabs;
};

/// All of loading that touches the device, on whatever driver the target has.
inline Result<FilledEntry> load_on_device(const EntryPlan& plan, FakeDisk& disk, const CudaTarget& target,
                                          const FillOptions& options = {}, std::stop_token stop = {}) {
  auto loading = CudaLoading::prepare(plan, target);
  if (!loading) return fail(loading.error());
  FilledEntry filled;
  filled.slabs = (*loading)->slabs();
  if (auto s = (*loading)->allocate(); !s) return fail(s.error());
  auto report = fill((*loading)->sink(), disk, options, {}, std::move(stop));
  if (!report) return fail(report.error());
  filled.report = std::move(*report);
  auto entry = (*loading)->finish();
  if (!entry) return fail(entry.error());
  filled.entry = std::move(*entry);
  return filled;
}

/// Every image, read back, is what the disk has.
inline void expect_holds(DeviceEntry& entry, const EntryPlan& plan, FakeDisk& disk) {
  for (std::size_t i = 0; i < plan.images.size(); ++i) {
    std::vector<std::byte> bytes(plan.images[i].nbytes);
    const Status read = entry.read(i, 0, bytes);
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_TRUE(bytes == expected_image(plan, disk, i)) << plan.images[i].name;
  }
}

}  // namespace wcache::testing

// Fills the device that the driver shows first and reads it back. The driver is the machine's own (label
// gpu); the same program runs on the fake one under label unit, so that what is rarely run is not broken when
// it is.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "daemon/fill/fill.h"
#include "daemon/memory/cuda/devices.h"
#include "daemon/memory/cuda/load.h"
#include "daemon/memory/cuda/loading.h"
#include "tests/unit/daemon/fill/fake_disk.h"
#include "tests/unit/daemon/fill/random_draft.h"
#include "tests/unit/daemon/memory/cuda/filled_entry.h"

namespace wcache {
namespace {

using testing::expect_holds;
using testing::FakeDisk;
using testing::ImageMemory;
using testing::load_on_device;

class Gpu : public ::testing::TestWithParam<DeviceIpc> {
 protected:
  void SetUp() override {
    auto driver = load_cuda_driver(cuda_driver_file());
    if (!driver) GTEST_SKIP() << driver.error().message;
    auto devices = cuda_devices(**driver);
    ASSERT_TRUE(devices) << devices.error().message;
    ASSERT_FALSE(devices->empty());
    const auto ipc = choose_ipc(devices->front(), GetParam());
    if (!ipc) GTEST_SKIP() << ipc.error().message;
    target_.driver = std::move(*driver);
    target_.device = std::move(devices->front());
    target_.ipc = *ipc;
  }

  CudaTarget target_;
};

TEST_P(Gpu, AnyPlanArrivesByteForByteWithTheDigestsOfTheHost) {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE(seed);
    FakeDisk disk;
    disk.seed = seed;
    const EntryPlan plan = testing::RandomDraft(seed).make(disk);
    target_.slab_nbytes = seed % 2 == 0 ? kSlabNbytes : std::uint64_t{2} << 20;
    const auto filled = load_on_device(plan, disk, target_);
    ASSERT_TRUE(filled) << filled.error().message;
    expect_holds(*filled->entry, plan, disk);
    ImageMemory host(plan);
    const auto there = fill(plan, host.spans(), disk);
    ASSERT_TRUE(there) << there.error().message;
    for (std::size_t i = 0; i < plan.images.size(); ++i)
      EXPECT_EQ(filled->report.digests[i].file, there->digests[i].file);
  }
}

TEST_P(Gpu, ManySlabsOfOneFillAreGivenAway) {
  FakeDisk disk;
  EntryPlan plan;
  for (std::uint32_t i = 0; i < 4; ++i) {
    plan.sources.push_back(
        disk.add("f" + std::to_string(i), testing::random_bytes((std::size_t{9} << 20) + i, i)));
    plan.images.push_back(testing::whole_image(plan.sources.back(), i));
  }
  target_.slab_nbytes = std::uint64_t{8} << 20;
  const auto filled = load_on_device(plan, disk, target_);
  ASSERT_TRUE(filled) << filled.error().message;
  const bool vmm = target_.ipc == DeviceIpc::vmm;
  EXPECT_EQ(filled->entry->slabs().size(), vmm ? 4U : 0U);
  EXPECT_EQ(filled->entry->handles().size(), vmm ? 0U : 4U);
  EXPECT_EQ(filled->entry->has_context(), !vmm);
  expect_holds(*filled->entry, plan, disk);
  EXPECT_TRUE(filled->entry->has_context()) << "it was read a moment ago";
}

TEST_P(Gpu, WhatIsLargerThanTheDeviceIsOverBudget) {
  FakeDisk disk;
  EntryPlan plan;
  plan.sources.push_back(disk.add("f", testing::random_bytes(4096, 1)));
  plan.images.push_back(testing::whole_image(plan.sources.back(), 0));
  plan.images[0].nbytes = plan.images[0].segments[0].nbytes = target_.device.total_nbytes + 1;
  const auto loading = CudaLoading::prepare(plan, target_);
  ASSERT_FALSE(loading);
  EXPECT_EQ(loading.error().reason, Reason::over_budget);
}

INSTANTIATE_TEST_SUITE_P(Kinds, Gpu, ::testing::Values(DeviceIpc::vmm, DeviceIpc::legacy),
                         [](const auto& kind) { return std::string(to_string(kind.param)); });

}  // namespace
}  // namespace wcache

#include "daemon/memory/cuda/loading.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <thread>

#include "tests/unit/daemon/memory/cuda/cuda_loading.h"

namespace wcache {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using testing::FakeDisk;
using testing::FakeMachine;
using testing::ImageMemory;
using testing::kMiB;

class CudaLoadingTest : public testing::CudaTest {
 protected:
  CudaTarget target(std::optional<DeviceIpc> ipc = std::nullopt) {
    auto found = find_target(ipc);
    EXPECT_TRUE(found) << found.error().message;
    return found.value();
  }
};

TEST_F(CudaLoadingTest, AnyPlanArrivesByteForByteWithTheDigestsOfTheHost) {
  std::set<std::size_t> slab_counts;
  for (std::uint64_t seed = 1; seed <= 24; ++seed) {
    SCOPED_TRACE(seed);
    FakeDisk disk;
    disk.seed = seed;
    disk.direct_alignment = seed % 3 == 0 ? 512 : seed % 3 == 1 ? 4096 : 65536;
    disk.is_blocking = seed % 5 == 0;
    const EntryPlan plan = testing::RandomDraft(seed).make(disk);
    CudaTarget to = target(seed % 2 == 0 ? DeviceIpc::vmm : DeviceIpc::legacy);
    to.slab_nbytes = seed % 4 == 0 ? kSlabNbytes : seed * kMiB / 2;
    FillOptions options;
    options.workers = 1 + static_cast<unsigned>(seed % 4);
    const auto filled = load(plan, disk, to, options);
    ASSERT_TRUE(filled) << filled.error().message;
    slab_counts.insert(filled->slabs.slabs.size());
    EXPECT_EQ(filled->entry->slabs().size(), to.ipc == DeviceIpc::vmm ? filled->slabs.slabs.size() : 0);
    EXPECT_EQ(filled->entry->handles().size(), to.ipc == DeviceIpc::vmm ? 0 : filled->slabs.slabs.size());
    expect_holds(*filled->entry, plan, disk);
    EXPECT_EQ(disk.misaligned, 0);

    ImageMemory host(plan);
    const auto there = fill(plan, host.spans(), disk);
    ASSERT_TRUE(there) << there.error().message;
    for (std::size_t i = 0; i < plan.images.size(); ++i) {
      EXPECT_EQ(filled->report.digests[i].file, there->digests[i].file);
      EXPECT_EQ(filled->report.digests[i].segments, there->digests[i].segments);
    }
  }
  EXPECT_TRUE(slab_counts.contains(1));
  EXPECT_TRUE(slab_counts.contains(8));
  EXPECT_LE(*slab_counts.rbegin(), 8u);
  expect_nothing_left();
}

}  // namespace
}  // namespace wcache

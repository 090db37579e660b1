#include "daemon/memory/cuda/loading.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <thread>

#include "daemon/memory/cuda/context.h"
#include "daemon/memory/cuda/pinned.h"
#include "tests/unit/daemon/memory/cuda/cuda_loading.h"

namespace wcache {
namespace {

using namespace std::chrono_literals;
using testing::FakeDisk;
using testing::FilledEntry;
using testing::FakeMachine;
using ::testing::HasSubstr;
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
    const auto filled = load_on_device(plan, disk, to, options);
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

/// Files of these sizes, served byte for byte.
EntryPlan copy_plan(FakeDisk& disk, const std::vector<std::uint64_t>& sizes) {
  EntryPlan plan;
  for (std::uint32_t i = 0; i < sizes.size(); ++i) {
    plan.sources.push_back(disk.add("f" + std::to_string(i), testing::random_bytes(sizes[i], i)));
    plan.images.push_back(testing::whole_image(plan.sources.back(), i));
  }
  return plan;
}

TEST_F(CudaLoadingTest, AnEmptyWeightFileAndOneOfABlockExactly) {
  FakeDisk disk;
  const EntryPlan plan = copy_plan(disk, {0, kHashBlock, 1, 0, kChunk, kChunk + 1});
  const auto filled = load_on_device(plan, disk, target());
  ASSERT_TRUE(filled) << filled.error().message;
  expect_holds(*filled->entry, plan, disk);
  EXPECT_EQ(filled->report.nbytes, plan.nbytes());
}

TEST_F(CudaLoadingTest, ABufferIsUsedAgainOnlyWhenItsCopyHasPassed) {
  constexpr unsigned kWorkers = 2;
  constexpr unsigned kBuffers = 2;
  FakeDisk disk;
  const EntryPlan plan = copy_plan(disk, {20 * kMiB + 3, 9 * kMiB});
  CudaTarget to = target();
  to.staging_buffers = kBuffers;
  FillOptions options;
  options.workers = kWorkers;
  options.stall_timeout = 10min;
  gpu_.hold_copies();
  std::optional<Result<FilledEntry>> filled;
  std::thread filling([&] { filled.emplace(load_on_device(plan, disk, to, options)); });
  while (control_.calls("cuEventRecord") < kWorkers * kBuffers) std::this_thread::sleep_for(1ms);
  // Every buffer waits for its copy now: nothing more may be read until one has passed.
  const std::uint64_t read = disk.read_nbytes;
  std::this_thread::sleep_for(30ms);
  EXPECT_EQ(control_.calls("cuEventRecord"), kWorkers * kBuffers);
  EXPECT_EQ(disk.read_nbytes, read);
  EXPECT_EQ(disk.in_flight, 0);
  gpu_.let_copies_go();
  filling.join();
  ASSERT_TRUE(*filled) << filled->error().message;
  expect_holds(*(*filled)->entry, plan, disk);
}

TEST_F(CudaLoadingTest, SmallRingsUnderSlowCopiesStayRight) {
  FakeMachine slow;
  slow.copy_delay_us = 1500;
  reconfigure(slow);
  for (unsigned buffers = 1; buffers <= 3; ++buffers) {
    FakeDisk disk;
    disk.seed = buffers;
    const EntryPlan plan = testing::RandomDraft(buffers + 100).make(disk);
    CudaTarget to = target(buffers == 2 ? DeviceIpc::legacy : DeviceIpc::vmm);
    to.staging_buffers = buffers;
    const auto filled = load_on_device(plan, disk, to);
    ASSERT_TRUE(filled) << filled.error().message;
    expect_holds(*filled->entry, plan, disk);
  }
  expect_nothing_left();
}

TEST_F(CudaLoadingTest, AStopInTheMiddleLeavesNothing) {
  for (const DeviceIpc ipc : {DeviceIpc::vmm, DeviceIpc::legacy}) {
    FakeDisk disk;
    const EntryPlan plan = copy_plan(disk, {60 * kMiB});
    std::stop_source stop;
    std::atomic<int> reads = 0;
    disk.fault = [&](const std::string&, std::uint64_t, std::uint64_t) -> std::optional<std::int64_t> {
      if (++reads == 9) stop.request_stop();
      return std::nullopt;
    };
    const auto filled = load_on_device(plan, disk, target(ipc), {}, stop.get_token());
    ASSERT_FALSE(filled);
    EXPECT_EQ(filled.error().reason, Reason::timeout);
    EXPECT_LT(reads, 30);
    expect_nothing_left();
  }
}

/// A device that never ends a copy: the fill says so and goes, and waits for nothing that the device has.
TEST_F(CudaLoadingTest, ADeviceThatHangsFailsTheFillInItsTime) {
  for (const auto& [ipc, event_fails] : {std::pair{DeviceIpc::vmm, false}, {DeviceIpc::legacy, true}}) {
    FakeDisk disk;
    const EntryPlan plan = copy_plan(disk, {9 * kMiB});
    FillOptions options;
    options.workers = 2;
    options.stall_timeout = 200ms;
    gpu_.hold_copies();
    control_.reset();
    if (event_fails) control_.fail("cuEventRecord:*=999");
    const auto filled = load_on_device(plan, disk, target(ipc), options);
    ASSERT_FALSE(filled);
    EXPECT_EQ(filled.error().reason, event_fails ? Reason::io : Reason::timeout);
    // On a busy machine reads too may have come to nothing for so long.
    if (event_fails)
      EXPECT_THAT(filled.error().message, HasSubstr("marking the end of a copy"));
    else
      EXPECT_THAT(filled.error().message,
                  ::testing::AnyOf(HasSubstr("does not reach the device"), HasSubstr("nothing came")));
    EXPECT_EQ(gpu_.contexts().size(), 1u) << "what its copies use stays until the process ends";
    end_hung_process();
  }
}

/// A file that is served from an own header: `head`, then all of source 0.
EntryPlan plan_with_head(FakeDisk& disk) {
  EntryPlan plan;
  plan.sources.push_back(disk.add("a", testing::random_bytes(3 * kMiB, 1)));
  ImagePlan draft;
  draft.name = "draft";
  draft.kind = FileKind::safetensors;
  draft.head = std::string(1000, 'h');
  draft.nbytes = 1000 + 3 * kMiB;
  draft.pieces = {{1000, 0, 0, 3 * kMiB}};
  draft.segments = {{0, 1000}, {1000, 3 * kMiB}};
  plan.images.push_back(draft);
  return plan;
}

TEST_F(CudaLoadingTest, AHeaderThatDoesNotArriveFailsTheFillInItsTime) {
  for (const bool stops : {false, true}) {
    FakeDisk disk;
    const EntryPlan plan = plan_with_head(disk);
    FillOptions options;
    options.stall_timeout = stops ? std::chrono::milliseconds(10min) : 50ms;
    std::stop_source stop;
    gpu_.hold_copies();
    control_.reset();
    std::jthread stopper([&] {
      while (control_.calls("cuMemcpyHtoDAsync_v2") == 0) std::this_thread::sleep_for(1ms);
      if (stops) stop.request_stop();
    });
    const auto filled = load_on_device(plan, disk, target(), options, stop.get_token());
    ASSERT_FALSE(filled);
    EXPECT_EQ(filled.error().reason, Reason::timeout);
    EXPECT_THAT(filled.error().message, HasSubstr(stops ? "stopped" : "a header does not reach the device"));
    stopper.join();
    end_hung_process();
  }
}

TEST_F(CudaLoadingTest, StagingBuffersAreFitForEveryAlignment) {
  const CudaTarget to = target();
  const auto context = CudaContext::retain(*to.driver, to.device);
  const auto current = CurrentContext::enter(*context);
  std::vector<PinnedMemory> all;
  for (const std::uint64_t pages : {1, 16, 17, 256, 544, 1632, 1}) {
    const std::uint64_t nbytes = pages * 4096;
    auto memory = PinnedMemory::create(*to.driver, nbytes);
    ASSERT_TRUE(memory) << memory.error().message;
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory->data()) % kMaxAlignment, 0u) << nbytes;
    std::memset(memory->data(), 1, nbytes);
    all.push_back(std::move(*memory));
  }
}

TEST_F(CudaLoadingTest, OutOfOtherMemoryThanTheDevicesSaysWhichOne) {
  FakeDisk disk;
  const EntryPlan plan = copy_plan(disk, {kMiB});
  for (const auto& [function, words] : {std::pair{"cuMemHostRegister_v2", "LimitMEMLOCK"},
                                        {"cuMemAddressReserve", "ulimit -v"},
                                        {"cuMemCreate", "free memory of the device"}}) {
    control_.reset();
    control_.fail(std::string(function) + ":1=2");
    const auto filled = load_on_device(plan, disk, target(DeviceIpc::vmm));
    ASSERT_FALSE(filled);
    EXPECT_EQ(filled.error().reason, Reason::over_budget);
    EXPECT_THAT(filled.error().hint, HasSubstr(words));
  }
}

TEST_F(CudaLoadingTest, ALegacyHandleIsOfAWholeAllocation) {
  FakeDisk disk;
  const EntryPlan plan = copy_plan(disk, {kMiB});
  CudaTarget to = target(DeviceIpc::legacy);
  auto cutting = std::make_shared<CudaDriver>(*to.driver);
  const auto refuses = [&](decltype(CudaDriver::cuMemGetAddressRange) says) {
    cutting->cuMemGetAddressRange = says;
    to.driver = cutting;
    const auto filled = load_on_device(plan, disk, to);
    ASSERT_FALSE(filled);
    EXPECT_EQ(filled.error().reason, Reason::unsupported);
    EXPECT_THAT(filled.error().message, HasSubstr("cut out of a larger allocation"));
    expect_nothing_left();
  };
  refuses([](CUdeviceptr* base, std::size_t* size, CUdeviceptr at) {
    *base = at - 4096;
    *size = 64 * kMiB;
    return CUDA_SUCCESS;
  });
  refuses([](CUdeviceptr* base, std::size_t* size, CUdeviceptr at) {
    *base = at;
    *size = 4096;
    return CUDA_SUCCESS;
  });
}

TEST_F(CudaLoadingTest, AFileThatCannotBeReadLeavesNothing) {
  FakeDisk disk;
  const EntryPlan plan = copy_plan(disk, {9 * kMiB});
  disk.fault = [](const std::string&, std::uint64_t offset, std::uint64_t) -> std::optional<std::int64_t> {
    return offset > 4 * kMiB ? std::optional<std::int64_t>(-EIO) : std::nullopt;
  };
  const auto filled = load_on_device(plan, disk, target());
  ASSERT_FALSE(filled);
  EXPECT_EQ(filled.error().reason, Reason::io);
  EXPECT_THAT(filled.error().message, HasSubstr("reading f0 at byte"));
  expect_nothing_left();
}

TEST_F(CudaLoadingTest, AVmmEntryIsNothingButDescriptors) {
  FakeDisk disk;
  const EntryPlan plan = copy_plan(disk, {5 * kMiB});
  auto filled = load_on_device(plan, disk, target(DeviceIpc::vmm));
  ASSERT_TRUE(filled) << filled.error().message;
  EXPECT_FALSE(filled->entry->has_context());
  EXPECT_EQ(gpu_.contexts().size(), 0u);
  EXPECT_EQ(gpu_.leaks(getpid()), std::vector<std::string>());
  EXPECT_EQ(gpu_.used_bytes(0), filled->slabs.nbytes());
  EXPECT_EQ(filled->entry->instance().size(), 32u);
  Fd kept = filled->entry->slabs()[0].duplicate().value();
  filled->entry.reset();
  EXPECT_EQ(gpu_.used_bytes(0), filled->slabs.slabs[0]) << "a descriptor holds the memory";
  kept.reset();
  expect_nothing_left();
}

TEST_F(CudaLoadingTest, ALegacyEntryKeepsItsContextAndMemory) {
  FakeDisk disk;
  const EntryPlan plan = copy_plan(disk, {5 * kMiB});
  auto filled = load_on_device(plan, disk, target(DeviceIpc::legacy));
  ASSERT_TRUE(filled) << filled.error().message;
  EXPECT_TRUE(filled->entry->has_context());
  EXPECT_EQ(gpu_.contexts().size(), 1u);
  EXPECT_EQ(gpu_.used_bytes(0), filled->slabs.nbytes());
  EXPECT_EQ(gpu_.live_allocations(0), filled->slabs.slabs.size());
  filled->entry.reset();
  expect_nothing_left();
}

TEST_F(CudaLoadingTest, FillsFitUntilTheDeviceIsFull) {
  FakeMachine small;
  small.devices[0].memory = 30 * kMiB;
  small.context_bytes = kMiB;
  reconfigure(small);
  FakeDisk disk;
  const EntryPlan plan = copy_plan(disk, {12 * kMiB});
  const CudaTarget to = target();
  const auto first = load_on_device(plan, disk, to);
  ASSERT_TRUE(first) << first.error().message;
  const auto second = load_on_device(plan, disk, to);
  ASSERT_TRUE(second) << second.error().message;
  EXPECT_NE(first->entry->instance(), second->entry->instance());
  control_.reset();
  const auto third = load_on_device(plan, disk, to);
  ASSERT_FALSE(third);
  EXPECT_EQ(third.error().reason, Reason::over_budget);
  EXPECT_THAT(third.error().message, HasSubstr(to.device.uuid));
  EXPECT_THAT(third.error().message, HasSubstr("12.0 MiB (12582912 bytes) of device memory are needed"));
  EXPECT_THAT(third.error().message, HasSubstr("5.0 MiB (5242880 bytes) free of 30.0 MiB"));
  EXPECT_EQ(control_.calls("cuMemCreate"), 0u);
  EXPECT_EQ(gpu_.used_bytes(0), 24 * kMiB);
  expect_holds(*first->entry, plan, disk);
  expect_holds(*second->entry, plan, disk);
}

TEST_F(CudaLoadingTest, MemoryThatSomebodyElseTookMeanwhileIsOverBudgetToo) {
  FakeDisk disk;
  const EntryPlan plan = copy_plan(disk, {600 * kMiB / 100});
  for (const DeviceIpc ipc : {DeviceIpc::vmm, DeviceIpc::legacy}) {
    auto loading = CudaLoading::prepare(plan, target(ipc));
    ASSERT_TRUE(loading) << loading.error().message;
    const auto other = gpu_.occupy(0, (std::uint64_t{1} << 30) - kMiB);
    const Status allocated = (*loading)->allocate();
    ASSERT_FALSE(allocated);
    EXPECT_EQ(allocated.error().reason, Reason::over_budget);
    EXPECT_THAT(allocated.error().message, HasSubstr("on GPU-"));
  }
  expect_nothing_left();
}

TEST_F(CudaLoadingTest, OtherFormatsThanSafetensorsAreUnsupported) {
  FakeDisk disk;
  EntryPlan plan = copy_plan(disk, {kMiB});
  plan.images[0].kind = FileKind::gguf;
  const auto filled = load_on_device(plan, disk, target());
  ASSERT_FALSE(filled);
  EXPECT_EQ(filled.error().reason, Reason::unsupported);
  EXPECT_EQ(control_.calls("cuDevicePrimaryCtxRetain"), 0u);
}

TEST_F(CudaLoadingTest, WithoutDescriptorsTheWayIsLegacy) {
  FakeMachine machine;
  machine.attributes[103] = 0;
  reconfigure(machine);
  EXPECT_EQ(target().ipc, DeviceIpc::legacy);
  const auto vmm = find_target(DeviceIpc::vmm);
  ASSERT_FALSE(vmm);
  EXPECT_EQ(vmm.error().reason, Reason::unsupported);
  EXPECT_EQ(vmm.error().key, "--ipc");
  machine.attributes[103] = 1;
  reconfigure(machine);
  EXPECT_EQ(target().ipc, DeviceIpc::vmm);
  EXPECT_EQ(target(DeviceIpc::legacy).ipc, DeviceIpc::legacy);
}

TEST_F(CudaLoadingTest, ADeviceThatTakesNoFurtherProcessSaysSo) {
  for (const auto& [mode, words] : {std::pair{3, "exclusive-process mode"}, {2, "prohibited mode"}}) {
    FakeMachine machine;
    machine.attributes[20] = mode;
    reconfigure(machine);
    const CudaTarget to = target();
    control_.reset();
    control_.fail("cuDevicePrimaryCtxRetain:*=46");
    FakeDisk disk;
    const auto filled = load_on_device(copy_plan(disk, {kMiB}), disk, to);
    ASSERT_FALSE(filled);
    EXPECT_EQ(filled.error().reason, Reason::unsupported);
    EXPECT_THAT(filled.error().message, HasSubstr(words));
    EXPECT_THAT(filled.error().hint, HasSubstr("nvidia-smi -c DEFAULT"));
  }
}

}  // namespace
}  // namespace wcache

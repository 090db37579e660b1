// Primary contexts: who has one, what needs one, and what goes with it.
#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "tests/fake_cuda/fixture.h"

namespace wcache::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

class ContextsTest : public FakeCudaTest {};

TEST_F(ContextsTest, WhatNeedsOneSaysSo) {
  ASSERT_EQ(cuda_.cuInit(0), CUDA_SUCCESS);
  CUdeviceptr address = 0;
  CUstream stream = nullptr;
  CUdevice device = 0;
  std::size_t bytes = 0;
  char host[16] = {};
  EXPECT_EQ(cuda_.cuMemAlloc_v2(&address, 100), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(cuda_.cuMemGetInfo_v2(&bytes, &bytes), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(cuda_.cuStreamCreate(&stream, 0), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(cuda_.cuMemHostRegister_v2(host, sizeof host, 0), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(cuda_.cuCtxGetDevice(&device), CUDA_ERROR_INVALID_CONTEXT);
  // None of virtual memory management does.
  EXPECT_NE(create_vmm(kGranularity), 0u);
  EXPECT_THAT(gpu_.contexts(), IsEmpty());
  start();
  EXPECT_EQ(cuda_.cuCtxGetDevice(&device), CUDA_SUCCESS);
  std::thread([&] { EXPECT_EQ(cuda_.cuMemAlloc_v2(&address, 100), CUDA_ERROR_INVALID_CONTEXT); }).join();
}

TEST_F(ContextsTest, CountedPerProcessAndDevice) {
  FakeMachine machine;
  machine.devices.resize(2);
  reconfigure(machine);
  start(1);
  CUcontext again = nullptr, current = nullptr;
  ASSERT_EQ(cuda_.cuDevicePrimaryCtxRetain(&again, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuda_.cuCtxGetCurrent(&current), CUDA_SUCCESS);
  EXPECT_EQ(again, current);
  EXPECT_THAT(gpu_.contexts(), ElementsAre(FakeGpu::Context{1, getpid()}));
  EXPECT_EQ(cuda_.cuDevicePrimaryCtxRelease_v2(1), CUDA_SUCCESS);
  EXPECT_EQ(counter("live.contexts"), 1u);
  EXPECT_EQ(cuda_.cuDevicePrimaryCtxRelease_v2(1), CUDA_SUCCESS);
  EXPECT_THAT(gpu_.contexts(), IsEmpty());
  EXPECT_EQ(cuda_.cuDevicePrimaryCtxRelease_v2(1), CUDA_ERROR_INVALID_CONTEXT);
  CUdeviceptr address = 0;
  EXPECT_EQ(cuda_.cuMemAlloc_v2(&address, 100), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  EXPECT_EQ(counter("contexts_made.0"), 0u);
  EXPECT_EQ(counter("contexts_made.1"), 1u);
}

TEST_F(ContextsTest, TheStackOfAThread) {
  start();
  CUcontext context = nullptr, popped = nullptr;
  ASSERT_EQ(cuda_.cuCtxGetCurrent(&context), CUDA_SUCCESS);
  EXPECT_EQ(cuda_.cuCtxSetCurrent(nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cuda_.cuCtxPopCurrent_v2(&popped), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(cuda_.cuCtxPushCurrent_v2(context), CUDA_SUCCESS);
  EXPECT_EQ(cuda_.cuCtxPushCurrent_v2(context), CUDA_SUCCESS);
  EXPECT_EQ(cuda_.cuCtxPopCurrent_v2(&popped), CUDA_SUCCESS);
  EXPECT_EQ(popped, context);
  EXPECT_EQ(cuda_.cuCtxPopCurrent_v2(nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cuda_.cuCtxGetCurrent(&context), CUDA_SUCCESS);
  EXPECT_EQ(context, nullptr);
  EXPECT_EQ(cuda_.cuCtxPushCurrent_v2(nullptr), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(cuda_.cuCtxSetCurrent(reinterpret_cast<CUcontext>(8)), CUDA_ERROR_INVALID_CONTEXT);
}

TEST_F(ContextsTest, OtherProcessesContextsAreSeenAndGoWhenTheyAreKilled) {
  start();
  ChildProcess child(gpu_, "context");
  ASSERT_EQ(child.report().result, CUDA_SUCCESS);
  EXPECT_THAT(gpu_.contexts(),
              UnorderedElementsAre(FakeGpu::Context{0, getpid()}, FakeGpu::Context{0, child.pid()}));
  child.kill();
  EXPECT_THAT(gpu_.contexts(), ElementsAre(FakeGpu::Context{0, getpid()}));
  EXPECT_EQ(gpu_.counter(child.pid(), "live.contexts"), 1u) << "the counters stay";
}

TEST_F(ContextsTest, ExclusiveAndProhibitedDevices) {
  FakeMachine machine;
  machine.attributes = {{CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, CU_COMPUTEMODE_EXCLUSIVE_PROCESS}};
  reconfigure(machine);
  {
    ChildProcess child(gpu_, "context");
    ASSERT_EQ(child.report().result, CUDA_SUCCESS);
    ChildProcess other(gpu_, "context");
    EXPECT_EQ(other.report().result, CUDA_ERROR_DEVICE_UNAVAILABLE);
  }
  ChildProcess later(gpu_, "context");
  EXPECT_EQ(later.report().result, CUDA_SUCCESS);
  machine.attributes = {{CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, CU_COMPUTEMODE_PROHIBITED}};
  gpu_.configure(machine);
  ChildProcess prohibited(gpu_, "context");
  EXPECT_EQ(prohibited.report().result, CUDA_ERROR_DEVICE_UNAVAILABLE);
}

TEST_F(ContextsTest, TakeDeviceMemory) {
  FakeMachine machine;
  machine.devices[0].memory = 10 * kMiB;
  machine.context_bytes = 4 * kMiB;
  reconfigure(machine);
  start();
  std::size_t free = 0, total = 0;
  ASSERT_EQ(cuda_.cuMemGetInfo_v2(&free, &total), CUDA_SUCCESS);
  EXPECT_EQ(free, 6 * kMiB);
  ChildProcess second(gpu_, "context");
  EXPECT_EQ(second.report().result, CUDA_SUCCESS);
  ChildProcess third(gpu_, "context");
  EXPECT_EQ(third.report().result, CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_F(ContextsTest, WithTheLastReferenceGoesWhatWasMadeInIt) {
  start();
  ChildProcess child(gpu_, "legacy", 1000);
  CUdeviceptr address = 0, opened = 0;
  CUstream stream = nullptr;
  CUevent event = nullptr;
  void* host = nullptr;
  std::vector<char> registered(5000);
  ASSERT_EQ(cuda_.cuMemAlloc_v2(&address, 1000), CUDA_SUCCESS);
  ASSERT_EQ(cuda_.cuIpcOpenMemHandle_v2(&opened, child.report().handle, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuda_.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  ASSERT_EQ(cuda_.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  ASSERT_EQ(cuda_.cuMemHostAlloc(&host, 1000, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuda_.cuMemHostRegister_v2(registered.data(), registered.size(), 0), CUDA_SUCCESS);
  const CUmemGenericAllocationHandle vmm = create_vmm(kGranularity);
  ASSERT_EQ(cuda_.cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
  EXPECT_THAT(gpu_.leaks(getpid()), ElementsAre("live.handles=1")) << "which needs no context";
  EXPECT_EQ(cuda_.cuMemRelease(vmm), CUDA_SUCCESS);
  EXPECT_EQ(gpu_.live_allocations(0), 1u) << "the other process's";
}

TEST_F(ContextsTest, AForkedProcessHasNone) {
  start();
  const pid_t child = fork();
  if (child == 0) {
    CUdeviceptr address = 0;
    const bool refused = cuda_.cuMemAlloc_v2(&address, 100) == CUDA_ERROR_NOT_INITIALIZED &&
                         cuda_.cuInit(0) == CUDA_ERROR_NOT_INITIALIZED;
    _exit(refused ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace wcache::testing

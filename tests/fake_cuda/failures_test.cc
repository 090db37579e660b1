// Injected failures: the call fails and leaves nothing behind, whichever of a sequence it is.
#include <gmock/gmock.h>
#include <unistd.h>

#include <functional>

#include "tests/fake_cuda/fixture.h"
#include "tests/support/descriptors.h"

namespace wcache::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class FailuresTest : public FakeCudaTest {
 protected:
  /// Makes one of everything, stops at the first failure, and gives all back.
  CUresult one_of_everything() {
    std::vector<std::function<void()>> undo;
    const CUresult result = make_everything(undo);
    driver_.fail("");
    while (!undo.empty()) {
      undo.back()();
      undo.pop_back();
    }
    return result;
  }

  CUresult make_everything(std::vector<std::function<void()>>& undo) {
    const auto step = [&](CUresult result, std::function<void()> back) {
      if (result == CUDA_SUCCESS) undo.push_back(std::move(back));
      return result;
    };
    CUresult result = step(cuda_.cuMemAlloc_v2(&legacy_, 1000), [&] { cuda_.cuMemFree_v2(legacy_); });
    if (result == CUDA_SUCCESS) {
      const CUmemAllocationProp properties = vmm_properties();
      result = step(cuda_.cuMemCreate(&handle_, kGranularity, &properties, 0),
                    [&] { cuda_.cuMemRelease(handle_); });
    }
    if (result == CUDA_SUCCESS) {
      result =
          step(cuda_.cuMemExportToShareableHandle(&fd_, handle_, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
               [&] { close(fd_); });
    }
    if (result == CUDA_SUCCESS) {
      result = step(cuda_.cuMemImportFromShareableHandle(
                        &imported_, reinterpret_cast<void*>(static_cast<std::intptr_t>(fd_)),
                        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                    [&] { cuda_.cuMemRelease(imported_); });
    }
    if (result == CUDA_SUCCESS) {
      result = step(cuda_.cuMemAddressReserve(&reserved_, kGranularity, 0, 0, 0),
                    [&] { cuda_.cuMemAddressFree(reserved_, kGranularity); });
    }
    if (result == CUDA_SUCCESS) {
      result = step(cuda_.cuMemMap(reserved_, kGranularity, 0, imported_, 0),
                    [&] { cuda_.cuMemUnmap(reserved_, kGranularity); });
    }
    if (result == CUDA_SUCCESS) result = make_the_rest(step);
    return result;
  }

  template <class Step>
  CUresult make_the_rest(const Step& step) {
    CUresult result = step(cuda_.cuMemHostAlloc(&host_, 1000, 0), [&] { cuda_.cuMemFreeHost(host_); });
    if (result == CUDA_SUCCESS) {
      result = step(cuda_.cuMemHostRegister_v2(buffer_, sizeof buffer_, 0),
                    [&] { cuda_.cuMemHostUnregister(buffer_); });
    }
    if (result == CUDA_SUCCESS) {
      result = step(cuda_.cuStreamCreate(&stream_, 0), [&] { cuda_.cuStreamDestroy_v2(stream_); });
    }
    if (result == CUDA_SUCCESS) {
      result = step(cuda_.cuEventCreate(&event_, 0), [&] { cuda_.cuEventDestroy_v2(event_); });
    }
    if (result == CUDA_SUCCESS) {
      result = step(cuda_.cuMemcpyHtoDAsync_v2(legacy_, buffer_, sizeof buffer_, stream_),
                    [&] { cuda_.cuStreamSynchronize(stream_); });
    }
    if (result == CUDA_SUCCESS) {
      result =
          step(cuda_.cuDevicePrimaryCtxRetain(&context_, 0), [&] { cuda_.cuDevicePrimaryCtxRelease_v2(0); });
    }
    return result;
  }

  CUdeviceptr legacy_ = 0, reserved_ = 0;
  CUmemGenericAllocationHandle handle_ = 0, imported_ = 0;
  int fd_ = -1;
  void* host_ = nullptr;
  char buffer_[500] = {};
  CUstream stream_ = nullptr;
  CUevent event_ = nullptr;
  CUcontext context_ = nullptr;
};

TEST_F(FailuresTest, TheNthCallOrEach) {
  start();
  driver_.reset();
  CUdeviceptr address = 0;
  driver_.fail("cuMemAlloc_v2:2=2,cuMemFree_v2:*=999");
  EXPECT_EQ(cuda_.cuMemAlloc_v2(&address, 100), CUDA_SUCCESS);
  EXPECT_EQ(cuda_.cuMemAlloc_v2(&address, 100), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cuda_.cuMemAlloc_v2(&address, 100), CUDA_SUCCESS);
  EXPECT_EQ(cuda_.cuMemFree_v2(address), CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(cuda_.cuMemFree_v2(address), CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(driver_.calls("cuMemAlloc_v2"), 3u);
  EXPECT_EQ(driver_.calls("any"), 5u);
  EXPECT_EQ(counter("calls.cuMemFree_v2"), 2u);
  EXPECT_EQ(counter("live.allocations"), 2u);
  driver_.fail("");
  EXPECT_EQ(cuda_.cuMemFree_v2(address), CUDA_SUCCESS);
}

TEST_F(FailuresTest, OfTheEnvironment) {
  FakeMachine machine;
  reconfigure(machine, "cuDevicePrimaryCtxRetain:1=2");
  CUcontext context = nullptr;
  ASSERT_EQ(cuda_.cuInit(0), CUDA_SUCCESS);
  EXPECT_EQ(cuda_.cuDevicePrimaryCtxRetain(&context, 0), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_THAT(gpu_.contexts(), IsEmpty());
  EXPECT_EQ(cuda_.cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
}

TEST_F(FailuresTest, WhatIsNotUnderstoodIsRefused) {
  for (const char* bad :
       {"cuMemAlloc:1=2", "cuMemAlloc_v2:0=2", "cuMemAlloc_v2=2", "cuMemAlloc_v2:1", "any:x=1"}) {
    EXPECT_THROW(driver_.fail(bad), std::invalid_argument) << bad;
  }
  EXPECT_THROW(driver_.calls("cuMemAlloc"), std::invalid_argument);
}

TEST_F(FailuresTest, WhicheverCallFailsNothingIsLeft) {
  start();
  driver_.reset();
  ASSERT_EQ(one_of_everything(), CUDA_SUCCESS);
  const std::size_t descriptors = test::open_descriptors();
  ASSERT_THAT(gpu_.leaks(getpid(), false), IsEmpty());
  bool all_done = false;
  unsigned failing = 0;
  while (!all_done) {
    driver_.reset();
    driver_.fail("any:" + std::to_string(++failing) + "=801");
    const CUresult result = one_of_everything();
    all_done = result == CUDA_SUCCESS;
    EXPECT_EQ(result, all_done ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_THAT(gpu_.leaks(getpid()), ElementsAre("live.contexts=1")) << "call " << failing;
    EXPECT_EQ(gpu_.used_bytes(0), 0u) << "call " << failing;
    EXPECT_EQ(test::open_descriptors(), descriptors) << "call " << failing;
  }
  EXPECT_EQ(failing, 13u) << "12 calls make everything";
}

}  // namespace
}  // namespace wcache::testing

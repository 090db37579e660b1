// Copies, streams and events: what is done when, and what it reads then.
#include <gmock/gmock.h>
#include <sys/mman.h>
#include <unistd.h>

#include <thread>

#include "tests/fake_cuda/fixture.h"

namespace wcache::testing {
namespace {

using ::testing::IsEmpty;

class CopiesTest : public FakeCudaTest {
 protected:
  void start_with_delay(std::uint64_t delay_us) {
    FakeMachine machine;
    machine.copy_delay_us = delay_us;
    reconfigure(machine);
    start();
    ASSERT_EQ(cuda_.cuMemAlloc_v2(&address_, kMiB), CUDA_SUCCESS);
    ASSERT_EQ(cuda_.cuMemHostAlloc(&staging_, kMiB, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuda_.cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    ASSERT_EQ(cuda_.cuEventCreate(&event_, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  }

  void stage(unsigned seed) {
    const std::vector<unsigned char> bytes = pattern(kMiB, seed);
    std::copy(bytes.begin(), bytes.end(), static_cast<unsigned char*>(staging_));
  }

  CUdeviceptr address_ = 0;
  void* staging_ = nullptr;
  CUstream stream_ = nullptr;
  CUevent event_ = nullptr;
};

TEST_F(CopiesTest, AStagingBufferReusedEarlyShows) {
  start_with_delay(0);
  gpu_.hold_copies();
  stage(1);
  ASSERT_EQ(cuda_.cuMemcpyHtoDAsync_v2(address_, staging_, kMiB, stream_), CUDA_SUCCESS);
  ASSERT_EQ(cuda_.cuEventRecord(event_, stream_), CUDA_SUCCESS);
  EXPECT_EQ(cuda_.cuEventQuery(event_), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(cuda_.cuStreamQuery(stream_), CUDA_ERROR_NOT_READY);
  stage(2);
  gpu_.let_copies_go();
  ASSERT_EQ(cuda_.cuEventSynchronize(event_), CUDA_SUCCESS);
  EXPECT_EQ(read_all(address_, kMiB), pattern(kMiB, 2)) << "what was in the buffer when the copy was done";
}

TEST_F(CopiesTest, AStagingBufferReusedAfterItsEventDoesNot) {
  start_with_delay(1000);
  stage(1);
  ASSERT_EQ(cuda_.cuMemcpyHtoDAsync_v2(address_, staging_, kMiB, stream_), CUDA_SUCCESS);
  ASSERT_EQ(cuda_.cuEventRecord(event_, stream_), CUDA_SUCCESS);
  while (cuda_.cuEventQuery(event_) == CUDA_ERROR_NOT_READY) usleep(100);
  stage(2);
  EXPECT_EQ(read_all(address_, kMiB), pattern(kMiB, 1));
  EXPECT_EQ(cuda_.cuStreamQuery(stream_), CUDA_SUCCESS);
}

TEST_F(CopiesTest, AStreamIsInOrder) {
  start_with_delay(100);
  stage(1);
  std::vector<unsigned char> back(kMiB);
  ASSERT_EQ(cuda_.cuMemHostRegister_v2(back.data(), back.size(), 0), CUDA_SUCCESS);
  CUdeviceptr other = 0;
  ASSERT_EQ(cuda_.cuMemAlloc_v2(&other, kMiB), CUDA_SUCCESS);
  ASSERT_EQ(cuda_.cuMemcpyHtoDAsync_v2(address_, staging_, kMiB, stream_), CUDA_SUCCESS);
  ASSERT_EQ(cuda_.cuMemcpyDtoDAsync_v2(other, address_, kMiB, stream_), CUDA_SUCCESS);
  ASSERT_EQ(cuda_.cuMemcpyDtoHAsync_v2(back.data(), other, kMiB, stream_), CUDA_SUCCESS);
  ASSERT_EQ(cuda_.cuStreamSynchronize(stream_), CUDA_SUCCESS);
  EXPECT_EQ(back, pattern(kMiB, 1));
  EXPECT_EQ(counter("pageable_copies"), 0u);
  EXPECT_EQ(counter("bytes_to_device"), kMiB);
  EXPECT_EQ(counter("bytes_from_device"), kMiB);
}

TEST_F(CopiesTest, StreamsDoNotWaitForOneAnother) {
  start_with_delay(0);
  gpu_.hold_copies();
  ASSERT_EQ(cuda_.cuMemcpyHtoDAsync_v2(address_, staging_, kMiB, stream_), CUDA_SUCCESS);
  CUstream other = nullptr;
  ASSERT_EQ(cuda_.cuStreamCreate(&other, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuda_.cuEventRecord(event_, other), CUDA_SUCCESS);
  ASSERT_EQ(cuda_.cuEventSynchronize(event_), CUDA_SUCCESS);
  EXPECT_EQ(cuda_.cuStreamQuery(stream_), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(cuda_.cuStreamQuery(other), CUDA_SUCCESS);
  gpu_.let_copies_go();
  EXPECT_EQ(cuda_.cuStreamSynchronize(stream_), CUDA_SUCCESS);
}

TEST_F(CopiesTest, UnregisteredMemoryIsCopiedAtOnceAndCounted) {
  start_with_delay(1000);
  const std::vector<unsigned char> bytes = pattern(5000, 3);
  std::vector<unsigned char> source = bytes;
  ASSERT_EQ(cuda_.cuMemcpyHtoDAsync_v2(address_, source.data(), source.size(), stream_), CUDA_SUCCESS);
  std::fill(source.begin(), source.end(), static_cast<unsigned char>(0));
  EXPECT_EQ(read_all(address_, 5000), bytes);
  EXPECT_EQ(counter("pageable_copies"), 2u);
}

TEST_F(CopiesTest, NoCopyIsPartlyRegistered) {
  start_with_delay(0);
  std::vector<unsigned char> memory(8192);
  ASSERT_EQ(cuda_.cuMemHostRegister_v2(memory.data(), 4096, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuda_.cuMemcpyHtoDAsync_v2(address_, memory.data(), 4097, stream_), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda_.cuMemcpyHtoDAsync_v2(address_, memory.data(), 4096, stream_), CUDA_SUCCESS);
  EXPECT_EQ(cuda_.cuStreamSynchronize(stream_), CUDA_SUCCESS);
}

TEST_F(CopiesTest, AllOfAContextCanBeWaitedFor) {
  start_with_delay(1000);
  stage(1);
  ASSERT_EQ(cuda_.cuMemcpyHtoDAsync_v2(address_, staging_, kMiB, stream_), CUDA_SUCCESS);
  EXPECT_EQ(cuda_.cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(cuda_.cuStreamQuery(stream_), CUDA_SUCCESS);
  EXPECT_EQ(counter("bytes_to_device"), kMiB);
}

TEST_F(CopiesTest, BadArguments) {
  start_with_delay(0);
  const auto bad_stream = reinterpret_cast<CUstream>(0x1234);
  EXPECT_EQ(cuda_.cuMemcpyHtoDAsync_v2(address_, staging_, 10, bad_stream), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuda_.cuMemcpyHtoDAsync_v2(address_, nullptr, 10, stream_), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda_.cuMemcpyHtoDAsync_v2(address_, reinterpret_cast<void*>(4096), 10, stream_),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda_.cuMemcpyDtoHAsync_v2(nullptr, address_, 10, stream_), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda_.cuMemcpyHtoDAsync_v2(address_, staging_, 0, stream_), CUDA_SUCCESS);
  EXPECT_EQ(cuda_.cuEventRecord(reinterpret_cast<CUevent>(8), stream_), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuda_.cuEventRecord(event_, bad_stream), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuda_.cuEventQuery(event_), CUDA_SUCCESS) << "never recorded";
  EXPECT_EQ(cuda_.cuEventCreate(&event_, 64), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda_.cuStreamCreate(nullptr, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda_.cuStreamSynchronize(stream_), CUDA_SUCCESS) << "nothing of this breaks the context";
}

TEST_F(CopiesTest, FreeingWaitsForCopies) {
  start_with_delay(100'000);
  ASSERT_EQ(cuda_.cuMemcpyHtoDAsync_v2(address_, staging_, kMiB, stream_), CUDA_SUCCESS);
  EXPECT_EQ(cuda_.cuMemFree_v2(address_), CUDA_SUCCESS);
  EXPECT_EQ(cuda_.cuStreamQuery(stream_), CUDA_SUCCESS);
  EXPECT_EQ(counter("bytes_to_device"), kMiB);
}

TEST_F(CopiesTest, ADestroyedStreamDoesWhatItWasAskedAndIsWaitedFor) {
  start_with_delay(100'000);
  ASSERT_EQ(cuda_.cuMemcpyHtoDAsync_v2(address_, staging_, kMiB, stream_), CUDA_SUCCESS);
  ASSERT_EQ(cuda_.cuStreamDestroy_v2(stream_), CUDA_SUCCESS);
  EXPECT_EQ(cuda_.cuMemFree_v2(address_), CUDA_SUCCESS);
  EXPECT_EQ(counter("bytes_to_device"), kMiB);
}

TEST_F(CopiesTest, ARestartWaitsForTheCopyOfADestroyedStream) {
  start_with_delay(100'000);
  ASSERT_EQ(cuda_.cuMemcpyHtoDAsync_v2(address_, staging_, kMiB, stream_), CUDA_SUCCESS);
  ASSERT_EQ(cuda_.cuStreamDestroy_v2(stream_), CUDA_SUCCESS);
  driver_.restart();
  EXPECT_EQ(counter("bytes_to_device"), kMiB);
  EXPECT_THAT(gpu_.leaks(getpid(), false), IsEmpty());
}

TEST_F(CopiesTest, ARestartLeavesAThreadThatWaitsForItsCopyWhatItNeeds) {
  start_with_delay(0);
  gpu_.hold_copies();
  ASSERT_EQ(cuda_.cuMemcpyHtoDAsync_v2(address_, staging_, kMiB, stream_), CUDA_SUCCESS);
  CUcontext context = nullptr;
  ASSERT_EQ(cuda_.cuCtxGetCurrent(&context), CUDA_SUCCESS);
  CUresult result = CUDA_ERROR_UNKNOWN;
  std::thread waiting([&] {
    ASSERT_EQ(cuda_.cuCtxSetCurrent(context), CUDA_SUCCESS);
    result = cuda_.cuStreamSynchronize(stream_);
  });
  while (driver_.calls("cuStreamSynchronize") == 0) usleep(100);
  gpu_.let_copies_go();
  driver_.restart();
  waiting.join();
  EXPECT_EQ(result, CUDA_SUCCESS);
  EXPECT_EQ(counter("bytes_to_device"), kMiB);
}

TEST_F(CopiesTest, UnmappingUnderACopyBreaksTheContext) {
  start_with_delay(0);
  gpu_.hold_copies();
  const CUdeviceptr vmm = map_vmm(create_vmm(kGranularity), kGranularity, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  ASSERT_EQ(cuda_.cuMemcpyHtoDAsync_v2(vmm, staging_, kMiB, stream_), CUDA_SUCCESS);
  unmap_vmm(vmm, kGranularity);
  gpu_.let_copies_go();
  EXPECT_EQ(cuda_.cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(CopiesTest, LegacyMemoryThatBreaksUnderACopy) {
  start_with_delay(0);
  gpu_.hold_copies();
  ChildProcess child(gpu_, "legacy", kMiB);
  CUdeviceptr opened = 0;
  ASSERT_EQ(cuda_.cuIpcOpenMemHandle_v2(&opened, child.report().handle, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuda_.cuMemcpyDtoHAsync_v2(staging_, opened, kMiB, stream_), CUDA_SUCCESS);
  child.kill();
  gpu_.let_copies_go();
  EXPECT_EQ(cuda_.cuStreamSynchronize(stream_), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(CopiesTest, HostMemoryGoneUnderACopyBreaksTheContextAndNotTheProcess) {
  start_with_delay(0);
  gpu_.hold_copies();
  void* memory = mmap(nullptr, kMiB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  ASSERT_EQ(cuda_.cuMemHostRegister_v2(memory, kMiB, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuda_.cuMemcpyHtoDAsync_v2(address_, memory, kMiB, stream_), CUDA_SUCCESS);
  ASSERT_EQ(munmap(memory, kMiB), 0);
  gpu_.let_copies_go();
  EXPECT_EQ(cuda_.cuStreamSynchronize(stream_), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(CopiesTest, ACopyAcrossTwoMappings) {
  start_with_delay(0);
  CUdeviceptr address = 0;
  ASSERT_EQ(cuda_.cuMemAddressReserve(&address, 2 * kGranularity, 0, 0, 0), CUDA_SUCCESS);
  CUmemAccessDesc access = {};
  access.location = vmm_properties().location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  for (const std::size_t at : {kGranularity, std::size_t{0}}) {
    ASSERT_EQ(cuda_.cuMemMap(address + at, kGranularity, 0, create_vmm(kGranularity), 0), CUDA_SUCCESS);
  }
  ASSERT_EQ(cuda_.cuMemSetAccess(address, 2 * kGranularity, &access, 1), CUDA_SUCCESS);
  const CUdeviceptr middle = address + kGranularity - kMiB - 7;
  ASSERT_EQ(write(middle, pattern(2 * kMiB, 4)), CUDA_SUCCESS);
  EXPECT_EQ(read_all(middle, 2 * kMiB), pattern(2 * kMiB, 4));
  ASSERT_EQ(cuda_.cuMemcpyDtoDAsync_v2(address_, middle + 5, kMiB, nullptr), CUDA_SUCCESS);
  const std::vector<unsigned char> part = read_all(address_, kMiB);
  const std::vector<unsigned char> all = pattern(2 * kMiB, 4);
  EXPECT_TRUE(std::equal(part.begin(), part.end(), all.begin() + 5));
}

}  // namespace
}  // namespace wcache::testing

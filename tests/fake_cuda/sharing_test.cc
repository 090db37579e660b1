// Device memory shared by real processes, and what becomes of it when one of them ends.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <gmock/gmock.h>

#include "tests/fake_cuda/fixture.h"

namespace wcache::testing {
namespace {

using ::testing::IsEmpty;

class Sharing : public FakeCudaTest {
 protected:
  CUresult import_fd(int fd, CUmemGenericAllocationHandle* handle) {
    return cuda_.cuMemImportFromShareableHandle(handle,
                                                reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)),
                                                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  }

  CUdeviceptr open(const CUipcMemHandle& handle) {
    CUdeviceptr address = 0;
    EXPECT_EQ(cuda_.cuIpcOpenMemHandle_v2(&address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
              CUDA_SUCCESS);
    return address;
  }
};

TEST_F(Sharing, VmmMemoryOutlivesItsMaker) {
  start();
  ChildProcess child(gpu_, "vmm", 2 * kGranularity);
  ASSERT_EQ(child.report().result, CUDA_SUCCESS);
  CUmemGenericAllocationHandle handle = 0;
  ASSERT_EQ(import_fd(child.fd(), &handle), CUDA_SUCCESS);
  child.close_fd();
  const CUdeviceptr address = map_vmm(handle, 2 * kGranularity, CU_MEM_ACCESS_FLAGS_PROT_READ);
  EXPECT_EQ(cuda_.cuMemRelease(handle), CUDA_SUCCESS);
  EXPECT_EQ(read_all(address, 2 * kGranularity), pattern(2 * kGranularity));

  child.kill();
  EXPECT_EQ(read_all(address, 2 * kGranularity), pattern(2 * kGranularity));
  EXPECT_EQ(gpu_.used_bytes(0), 2 * kGranularity);
  EXPECT_EQ(gpu_.live_allocations(0), 1u);

  unmap_vmm(address, 2 * kGranularity);
  EXPECT_EQ(gpu_.used_bytes(0), 0u);
}

TEST_F(Sharing, VmmMemoryLivesInADescriptorAlone) {
  ChildProcess child(gpu_, "vmm", kGranularity);
  ASSERT_EQ(child.report().result, CUDA_SUCCESS);
  child.kill();
  EXPECT_EQ(gpu_.used_bytes(0), kGranularity);
  child.close_fd();
  EXPECT_EQ(gpu_.used_bytes(0), 0u);
}

TEST_F(Sharing, EachImportIsAHandleOfItsOwn) {
  start();
  ChildProcess child(gpu_, "vmm", kGranularity);
  CUmemGenericAllocationHandle first = 0, second = 0;
  ASSERT_EQ(import_fd(child.fd(), &first), CUDA_SUCCESS);
  ASSERT_EQ(import_fd(child.fd(), &second), CUDA_SUCCESS);
  EXPECT_NE(first, second);
  const CUdeviceptr one = map_vmm(first, kGranularity, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  const CUdeviceptr two = map_vmm(second, kGranularity, CU_MEM_ACCESS_FLAGS_PROT_READ);
  ASSERT_EQ(write(one + 4096, {1, 2, 3}), CUDA_SUCCESS);
  EXPECT_EQ(read_all(two + 4096, 3), (std::vector<unsigned char>{1, 2, 3}));
  EXPECT_EQ(counter("live.handles"), 2u);
}

TEST_F(Sharing, WhatIsNoDescriptorOfDeviceMemoryIsNotImported) {
  start();
  CUmemGenericAllocationHandle handle = 0;
  const fake_cuda::OwnFd memory(memfd_create("d0-vmm-1-1", MFD_CLOEXEC));
  EXPECT_EQ(import_fd(memory.get(), &handle), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(import_fd(-1, &handle), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(import_fd(9999, &handle), CUDA_ERROR_INVALID_VALUE);
  CUdeviceptr legacy = 0;
  ASSERT_EQ(cuda_.cuMemAlloc_v2(&legacy, 100), CUDA_SUCCESS);
  for (const auto& file : std::filesystem::directory_iterator(gpu_.directory() / "memory")) {
    const fake_cuda::OwnFd fd(::open(file.path().c_str(), O_RDWR | O_CLOEXEC));
    EXPECT_EQ(import_fd(fd.get(), &handle), CUDA_ERROR_INVALID_VALUE);
  }
}

TEST_F(Sharing, MemoryOfADeviceThatIsNotVisibleIsNotImported) {
  FakeMachine machine;
  machine.devices.resize(2);
  reconfigure(machine);
  setenv("CUDA_VISIBLE_DEVICES", "1", 1);
  start();
  unsetenv("CUDA_VISIBLE_DEVICES");
  ChildProcess vmm(gpu_, "vmm", kGranularity);
  ChildProcess legacy(gpu_, "legacy", 1000);
  ASSERT_EQ(vmm.report().result, CUDA_SUCCESS);
  ASSERT_EQ(legacy.report().result, CUDA_SUCCESS);
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr address = 0;
  EXPECT_EQ(import_fd(vmm.fd(), &handle), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(cuda_.cuIpcOpenMemHandle_v2(&address, legacy.report().handle, 1), CUDA_ERROR_INVALID_DEVICE);
}

TEST_F(Sharing, LegacyHandlesOpenOnceAndAreCounted) {
  start();
  ChildProcess child(gpu_, "legacy", 3 * kMiB + 5);
  ASSERT_EQ(child.report().result, CUDA_SUCCESS);
  const CUdeviceptr address = open(child.report().handle);
  EXPECT_EQ(open(child.report().handle), address);
  EXPECT_EQ(read_all(address, 3 * kMiB + 5), pattern(3 * kMiB + 5));
  CUdeviceptr base = 0;
  std::size_t size = 0;
  ASSERT_EQ(cuda_.cuMemGetAddressRange_v2(&base, &size, address + 77), CUDA_SUCCESS);
  EXPECT_EQ(base, address);
  EXPECT_EQ(size, 3 * kMiB + 5);

  EXPECT_EQ(cuda_.cuIpcCloseMemHandle(address), CUDA_SUCCESS);
  EXPECT_EQ(read_all(address, 10), pattern(10));
  EXPECT_EQ(cuda_.cuIpcCloseMemHandle(address + 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda_.cuIpcCloseMemHandle(address), CUDA_SUCCESS);
  EXPECT_EQ(cuda_.cuIpcCloseMemHandle(address), CUDA_ERROR_INVALID_VALUE);
  EXPECT_THAT(gpu_.leaks(getpid(), false), IsEmpty());
}

TEST_F(Sharing, ALegacyHandleIsNotForItsOwnProcess) {
  start();
  CUdeviceptr address = 0, other = 0;
  CUipcMemHandle handle = {};
  ASSERT_EQ(cuda_.cuMemAlloc_v2(&address, 1000), CUDA_SUCCESS);
  ASSERT_EQ(cuda_.cuIpcGetMemHandle(&handle, address), CUDA_SUCCESS);
  EXPECT_EQ(cuda_.cuIpcOpenMemHandle_v2(&other, handle, 1), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(cuda_.cuIpcGetMemHandle(&handle, address + 1), CUDA_ERROR_INVALID_VALUE);
  const CUdeviceptr vmm = map_vmm(create_vmm(kGranularity), kGranularity, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  EXPECT_EQ(cuda_.cuIpcGetMemHandle(&handle, vmm), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(Sharing, ALegacyHandleNeedsItsFlagAndItsExporter) {
  start();
  ChildProcess child(gpu_, "legacy", 1000);
  CUdeviceptr address = 0;
  EXPECT_EQ(cuda_.cuIpcOpenMemHandle_v2(&address, child.report().handle, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda_.cuIpcOpenMemHandle_v2(&address, CUipcMemHandle{}, 1), CUDA_ERROR_INVALID_VALUE);
  child.kill();
  EXPECT_EQ(cuda_.cuIpcOpenMemHandle_v2(&address, child.report().handle, 1), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(Sharing, LegacyMemoryBreaksWhenItsExporterDies) {
  start();
  ChildProcess legacy(gpu_, "legacy", 1000);
  ChildProcess vmm(gpu_, "vmm", kGranularity);
  const CUdeviceptr address = open(legacy.report().handle);
  EXPECT_EQ(read_all(address, 1000), pattern(1000));
  legacy.kill();
  std::vector<unsigned char> bytes(1000);
  EXPECT_EQ(read(address, bytes), CUDA_ERROR_ILLEGAL_ADDRESS);
  // The context is broken for good; what needs none goes on.
  CUdeviceptr other = 0;
  EXPECT_EQ(cuda_.cuMemAlloc_v2(&other, 100), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(counter("sticky_error"), 700u);
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_EQ(import_fd(vmm.fd(), &handle), CUDA_SUCCESS);
  EXPECT_EQ(gpu_.used_bytes(0), kGranularity);
}

TEST_F(Sharing, LegacyMemoryBreaksWhenItsExporterFrees) {
  start();
  ChildProcess child(gpu_, "legacy", 1000);
  const CUdeviceptr address = open(child.report().handle);
  child.free_memory();
  EXPECT_EQ(write(address + 10, {1}), CUDA_ERROR_ILLEGAL_ADDRESS);
}

}  // namespace
}  // namespace wcache::testing

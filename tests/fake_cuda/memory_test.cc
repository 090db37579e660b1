// Device memory in one process: limits, addresses, access, host memory.
#include <gmock/gmock.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/fake_cuda/fixture.h"

namespace wcache::testing {
namespace {

using ::testing::IsEmpty;

class MemoryTest : public FakeCudaTest {
 protected:
  void start_with(const FakeMachine& machine) {
    reconfigure(machine);
    start();
  }

  CUresult set_access(CUdeviceptr address, std::size_t size, unsigned flags, CUdevice device = 0) {
    CUmemAccessDesc description = {};
    description.location = vmm_properties(device).location;
    description.flags = static_cast<CUmemAccess_flags>(flags);
    return cuda_.cuMemSetAccess(address, size, &description, 1);
  }

  CUresult create(std::size_t size, const CUmemAllocationProp& properties) {
    CUmemGenericAllocationHandle handle = 0;
    return cuda_.cuMemCreate(&handle, size, &properties, 0);
  }
};

FakeMachine machine_with(std::map<int, int> attributes) {
  FakeMachine machine;
  machine.attributes = std::move(attributes);
  return machine;
}

TEST_F(MemoryTest, IsLimitedAcrossProcesses) {
  FakeMachine machine;
  machine.devices[0].memory = 16 * kMiB;
  start_with(machine);
  CUdeviceptr first = 0, second = 0;
  ASSERT_EQ(cuda_.cuMemAlloc_v2(&first, 1), CUDA_SUCCESS);
  ChildProcess child(gpu_, "vmm", 4 * kMiB);
  ASSERT_EQ(child.report().result, CUDA_SUCCESS);
  std::size_t free = 0, total = 0;
  ASSERT_EQ(cuda_.cuMemGetInfo_v2(&free, &total), CUDA_SUCCESS);
  EXPECT_EQ(total, 16 * kMiB);
  EXPECT_EQ(free, 10 * kMiB) << "what is allocated counts in whole granules";
  EXPECT_EQ(cuda_.cuMemAlloc_v2(&second, 10 * kMiB + 1), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cuda_.cuMemAlloc_v2(&second, ~std::size_t{0}), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(create(12 * kMiB, vmm_properties()), CUDA_ERROR_OUT_OF_MEMORY);
  {
    const fake_cuda::OwnFd taken = gpu_.occupy(0, 2 * kMiB);
    EXPECT_EQ(cuda_.cuMemAlloc_v2(&second, 10 * kMiB), CUDA_ERROR_OUT_OF_MEMORY);
  }
  EXPECT_EQ(cuda_.cuMemAlloc_v2(&second, 10 * kMiB), CUDA_SUCCESS);
  EXPECT_EQ(cuda_.cuMemFree_v2(first), CUDA_SUCCESS);
  EXPECT_EQ(cuda_.cuMemFree_v2(second), CUDA_SUCCESS);
  EXPECT_EQ(cuda_.cuMemFree_v2(second), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(gpu_.used_bytes(0), 4 * kMiB);
}

TEST_F(MemoryTest, IsNotForTheHostToTouch) {
  start();
  CUdeviceptr address = 0;
  ASSERT_EQ(cuda_.cuMemAlloc_v2(&address, 1000), CUDA_SUCCESS);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  EXPECT_EQ(::write(ends[1], reinterpret_cast<void*>(address), 1), -1);
  EXPECT_EQ(errno, EFAULT);
  close(ends[0]);
  close(ends[1]);
}

TEST_F(MemoryTest, InteriorPointersAndTheEnd) {
  start();
  CUdeviceptr address = 0;
  ASSERT_EQ(cuda_.cuMemAlloc_v2(&address, 1000), CUDA_SUCCESS);
  EXPECT_EQ(write(address + 900, std::vector<unsigned char>(100, 7)), CUDA_SUCCESS);
  EXPECT_EQ(write(address + 901, std::vector<unsigned char>(100, 7)), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(write(address + 1000, {7}), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(write(4096, {7}), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(read_all(address + 899, 3), (std::vector<unsigned char>{0, 7, 7}));
  CUdeviceptr base = 0;
  std::size_t size = 0;
  EXPECT_EQ(cuda_.cuMemGetAddressRange_v2(&base, &size, address + 999), CUDA_SUCCESS);
  EXPECT_EQ(base, address);
  EXPECT_EQ(cuda_.cuMemGetAddressRange_v2(&base, &size, address + 4096), CUDA_ERROR_NOT_FOUND);
}

TEST_F(MemoryTest, WhatCreateRefuses) {
  start();
  CUmemAllocationProp properties = vmm_properties();
  EXPECT_EQ(create(kGranularity + 4096, properties), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(create(0, properties), CUDA_ERROR_INVALID_VALUE);
  properties.type = CU_MEM_ALLOCATION_TYPE_INVALID;
  EXPECT_EQ(create(kGranularity, properties), CUDA_ERROR_INVALID_VALUE);
  properties = vmm_properties(1);
  EXPECT_EQ(create(kGranularity, properties), CUDA_ERROR_INVALID_DEVICE);
  properties = vmm_properties();
  properties.location.type = CU_MEM_LOCATION_TYPE_HOST;
  EXPECT_EQ(create(kGranularity, properties), CUDA_ERROR_INVALID_VALUE);
  properties = vmm_properties();
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_FABRIC;
  EXPECT_EQ(create(kGranularity, properties), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(cuda_.cuMemCreate(nullptr, kGranularity, &properties, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_THAT(gpu_.leaks(getpid(), false), IsEmpty());
}

TEST_F(MemoryTest, DevicesThatCannotShareOrMap) {
  start_with(machine_with({{CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 0}}));
  CUmemAllocationProp properties = vmm_properties();
  EXPECT_EQ(create(kGranularity, properties), CUDA_ERROR_NOT_SUPPORTED);
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
  EXPECT_EQ(create(kGranularity, properties), CUDA_SUCCESS);
  start_with(machine_with({{CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0}}));
  EXPECT_EQ(create(kGranularity, properties), CUDA_ERROR_NOT_SUPPORTED);
}

TEST_F(MemoryTest, OnlyWhatWasMadeForItIsExported) {
  start();
  CUmemAllocationProp properties = vmm_properties();
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
  CUmemGenericAllocationHandle handle = 0;
  ASSERT_EQ(cuda_.cuMemCreate(&handle, kGranularity, &properties, 0), CUDA_SUCCESS);
  int fd = -1, other = -1;
  constexpr auto kFd = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  EXPECT_EQ(cuda_.cuMemExportToShareableHandle(&fd, handle, kFd, 0), CUDA_ERROR_INVALID_VALUE);
  handle = create_vmm(kGranularity);
  ASSERT_EQ(cuda_.cuMemExportToShareableHandle(&fd, handle, kFd, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuda_.cuMemExportToShareableHandle(&other, handle, kFd, 0), CUDA_SUCCESS);
  EXPECT_NE(fd, other);
  EXPECT_EQ(close(fd), 0);
  EXPECT_EQ(close(other), 0);
}

TEST_F(MemoryTest, MappingNeedsWholePlacesAndAccess) {
  start();
  const CUmemGenericAllocationHandle handle = create_vmm(2 * kGranularity);
  CUdeviceptr address = 0;
  EXPECT_EQ(cuda_.cuMemAddressReserve(&address, kGranularity - 1, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cuda_.cuMemAddressReserve(&address, 4 * kGranularity, 16 * kMiB, 0, 0), CUDA_SUCCESS);
  EXPECT_EQ(address % (16 * kMiB), 0u);
  EXPECT_EQ(cuda_.cuMemMap(address, kGranularity, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda_.cuMemMap(address, 2 * kGranularity, kGranularity, handle, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda_.cuMemMap(address + 3 * kGranularity, 2 * kGranularity, 0, handle, 0),
            CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cuda_.cuMemMap(address + kGranularity, 2 * kGranularity, 0, handle, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuda_.cuMemMap(address, 2 * kGranularity, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(set_access(address, 2 * kGranularity, 3), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(set_access(address + kGranularity, 2 * kGranularity, 2), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(set_access(address + kGranularity, 2 * kGranularity, 3, 1), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(set_access(address + kGranularity, 2 * kGranularity, 3), CUDA_SUCCESS);
  EXPECT_EQ(write(address + 3 * kGranularity - 3, {1, 2, 3}), CUDA_SUCCESS);
  EXPECT_EQ(cuda_.cuMemUnmap(address + kGranularity, kGranularity), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda_.cuMemAddressFree(address, 4 * kGranularity), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda_.cuMemUnmap(address + kGranularity, 2 * kGranularity), CUDA_SUCCESS);
  EXPECT_EQ(cuda_.cuMemAddressFree(address, kGranularity), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda_.cuMemAddressFree(address, 4 * kGranularity), CUDA_SUCCESS);
  EXPECT_EQ(cuda_.cuMemRelease(handle), CUDA_SUCCESS);
  EXPECT_EQ(cuda_.cuMemRelease(handle), CUDA_ERROR_INVALID_VALUE);
  EXPECT_THAT(gpu_.leaks(getpid(), false), IsEmpty());
}

TEST_F(MemoryTest, CopiesNeedTheAccessThatWasGiven) {
  start();
  CUmemGenericAllocationHandle handle = create_vmm(kGranularity);
  const CUdeviceptr none = map_vmm(handle, kGranularity, 0);
  const CUdeviceptr readable = map_vmm(handle, kGranularity, CU_MEM_ACCESS_FLAGS_PROT_READ);
  EXPECT_EQ(read_all(readable, 3), (std::vector<unsigned char>{0, 0, 0}));
  EXPECT_EQ(write(readable, {1}), CUDA_ERROR_ILLEGAL_ADDRESS);
  std::vector<unsigned char> byte(1);
  EXPECT_EQ(read(readable, byte), CUDA_ERROR_ILLEGAL_ADDRESS) << "broken for good";
  driver_.reset();
  EXPECT_EQ(read(readable, byte), CUDA_SUCCESS);
  EXPECT_EQ(read(none, byte), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(MemoryTest, ReadOnlyAccessMayBeRefused) {
  FakeMachine machine;
  machine.read_only_access = false;
  start_with(machine);
  const CUdeviceptr address = map_vmm(create_vmm(kGranularity), kGranularity, 0);
  EXPECT_EQ(set_access(address, kGranularity, CU_MEM_ACCESS_FLAGS_PROT_READ), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(set_access(address, kGranularity, CU_MEM_ACCESS_FLAGS_PROT_READWRITE), CUDA_SUCCESS);
}

TEST_F(MemoryTest, PointerAttributes) {
  start();
  CUdeviceptr legacy = 0;
  ASSERT_EQ(cuda_.cuMemAlloc_v2(&legacy, 1000), CUDA_SUCCESS);
  const CUdeviceptr vmm = map_vmm(create_vmm(kGranularity), kGranularity, CU_MEM_ACCESS_FLAGS_PROT_READ);
  const auto number = [&](CUpointer_attribute attribute, CUdeviceptr address) {
    unsigned value = ~0u;
    EXPECT_EQ(cuda_.cuPointerGetAttribute(&value, attribute, address), CUDA_SUCCESS) << attribute;
    return value;
  };
  EXPECT_EQ(number(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, legacy + 1), 1u);
  EXPECT_EQ(number(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, vmm), 0u);
  EXPECT_EQ(number(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, vmm), static_cast<unsigned>(CU_MEMORYTYPE_DEVICE));
  EXPECT_EQ(number(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, vmm), 0u);
  EXPECT_EQ(number(CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, vmm), 1u);
  EXPECT_EQ(number(CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, legacy), 3u);
  EXPECT_EQ(number(CU_POINTER_ATTRIBUTE_MAPPED, vmm), 1u);
  EXPECT_EQ(number(CU_POINTER_ATTRIBUTE_MAPPED, 4096), 0u);
  unsigned value = 0;
  EXPECT_EQ(cuda_.cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, 4096),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(MemoryTest, RegisteredHostMemory) {
  start();
  std::vector<char> memory(10'000);
  EXPECT_EQ(cuda_.cuMemHostRegister_v2(nullptr, 10, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda_.cuMemHostRegister_v2(memory.data(), 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda_.cuMemHostRegister_v2(memory.data(), 10, 64), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda_.cuMemHostRegister_v2(reinterpret_cast<void*>(4096), 10, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda_.cuMemHostRegister_v2(memory.data(), memory.size(), CU_MEMHOSTREGISTER_PORTABLE),
            CUDA_SUCCESS);
  EXPECT_EQ(cuda_.cuMemHostRegister_v2(memory.data() + 1, 10, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  EXPECT_EQ(cuda_.cuMemHostUnregister(memory.data() + 1), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  EXPECT_EQ(counter("live.registered"), 1u);
  EXPECT_EQ(cuda_.cuMemHostUnregister(memory.data()), CUDA_SUCCESS);
  EXPECT_EQ(cuda_.cuMemHostUnregister(memory.data()), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

TEST_F(MemoryTest, ReadOnlyHostMemoryIsRegisteredAsSuch) {
  void* memory = mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  start();
  EXPECT_EQ(cuda_.cuMemHostRegister_v2(memory, 4096, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda_.cuMemHostRegister_v2(memory, 4096, CU_MEMHOSTREGISTER_READ_ONLY), CUDA_SUCCESS);
  start_with(machine_with({{CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED, 0}}));
  EXPECT_EQ(cuda_.cuMemHostRegister_v2(memory, 4096, CU_MEMHOSTREGISTER_READ_ONLY), CUDA_ERROR_NOT_SUPPORTED);
  start_with(machine_with({{CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED, 0},
                           {CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES, 1}}));
  EXPECT_EQ(cuda_.cuMemHostRegister_v2(memory, 4096, 0), CUDA_SUCCESS);
  EXPECT_EQ(munmap(memory, 4096), 0);
}

TEST_F(MemoryTest, HostAllocations) {
  start();
  void* memory = nullptr;
  CUdeviceptr pointer = 0;
  ASSERT_EQ(cuda_.cuMemHostAlloc(&memory, 10'000, CU_MEMHOSTALLOC_PORTABLE), CUDA_SUCCESS);
  static_cast<char*>(memory)[9999] = 1;
  EXPECT_EQ(cuda_.cuMemHostGetDevicePointer_v2(&pointer, memory, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuda_.cuMemHostUnregister(memory), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  EXPECT_EQ(cuda_.cuMemFreeHost(memory), CUDA_SUCCESS);
  EXPECT_EQ(cuda_.cuMemFreeHost(memory), CUDA_ERROR_INVALID_VALUE);
  EXPECT_THAT(gpu_.leaks(getpid(), false), IsEmpty());
}

}  // namespace
}  // namespace wcache::testing

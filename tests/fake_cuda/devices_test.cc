// What a process sees of the machine before it has a context.
#include <gmock/gmock.h>
#include <unistd.h>

#include <cstring>

#include "tests/fake_cuda/config.h"
#include "tests/fake_cuda/fixture.h"

namespace wcache::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class DevicesTest : public FakeCudaTest {
 protected:
  ~DevicesTest() override { unsetenv("CUDA_VISIBLE_DEVICES"); }

  /// cuInit with these visible (null: unset); then the last byte of each device's UUID, in order.
  std::vector<int> visible(const char* devices) {
    driver_.restart();
    devices ? setenv("CUDA_VISIBLE_DEVICES", devices, 1) : unsetenv("CUDA_VISIBLE_DEVICES");
    const CUresult result = cuda_.cuInit(0);
    if (result != CUDA_SUCCESS) return {-static_cast<int>(result)};
    int count = 0;
    EXPECT_EQ(cuda_.cuDeviceGetCount(&count), CUDA_SUCCESS);
    std::vector<int> bytes;
    for (int device = 0; device < count; ++device) {
      CUuuid uuid = {};
      EXPECT_EQ(cuda_.cuDeviceGetUuid_v2(&uuid, device), CUDA_SUCCESS);
      bytes.push_back(static_cast<unsigned char>(uuid.bytes[15]));
    }
    return bytes;
  }

  int attribute(int number, CUdevice device = 0) {
    int value = -1;
    EXPECT_EQ(cuda_.cuDeviceGetAttribute(&value, static_cast<CUdevice_attribute>(number), device),
              CUDA_SUCCESS);
    return value;
  }
};

FakeMachine machine_of(std::size_t devices) {
  FakeMachine machine;
  machine.devices.resize(devices);
  return machine;
}

TEST_F(DevicesTest, NothingWorksBeforeInit) {
  int number = 0;
  CUmemGenericAllocationHandle handle = 0;
  const CUmemAllocationProp properties = vmm_properties();
  EXPECT_EQ(cuda_.cuDeviceGetCount(&number), CUDA_ERROR_NOT_INITIALIZED);
  EXPECT_EQ(cuda_.cuMemCreate(&handle, kGranularity, &properties, 0), CUDA_ERROR_NOT_INITIALIZED);
  EXPECT_EQ(cuda_.cuDriverGetVersion(&number), CUDA_SUCCESS);
  EXPECT_EQ(number, 13000);
  EXPECT_EQ(cuda_.cuInit(1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda_.cuInit(0), CUDA_SUCCESS);
  EXPECT_EQ(cuda_.cuInit(0), CUDA_SUCCESS);
}

TEST_F(DevicesTest, VisibleDevicesByIndexAndName) {
  reconfigure(machine_of(4));
  EXPECT_THAT(visible(nullptr), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(visible("2,0"), ElementsAre(2, 0));
  EXPECT_THAT(visible("3, 1"), ElementsAre(3, 1));
  EXPECT_THAT(visible("GPU-fa4e0000-0000-4000-8000-000000000002"), ElementsAre(2));
  EXPECT_THAT(visible("GPU-FA4E0000-0000-4000-8000-000000000003,0"), ElementsAre(3, 0));
  EXPECT_THAT(visible(""), ElementsAre(-CUDA_ERROR_NO_DEVICE));
}

TEST_F(DevicesTest, WhatComesAfterAnEntryThatNamesNoDeviceDoesNotCount) {
  reconfigure(machine_of(4));
  EXPECT_THAT(visible("1,-1,2"), ElementsAre(1));
  EXPECT_THAT(visible("1,4,2"), ElementsAre(1));
  EXPECT_THAT(visible("0,x,2"), ElementsAre(0));
  EXPECT_THAT(visible("3,GPU-0,2"), ElementsAre(3));
  EXPECT_THAT(visible("3,GPU-fa4e,2"), ElementsAre(3)) << "more than one device has that prefix";
  EXPECT_THAT(visible("1,1,2"), ElementsAre(1));
  EXPECT_THAT(visible("x"), ElementsAre(-CUDA_ERROR_NO_DEVICE));
}

TEST_F(DevicesTest, AUniquePrefixIsEnough) {
  FakeMachine machine = machine_of(2);
  machine.devices[0].uuid = "aa000000-0000-0000-0000-000000000001";
  machine.devices[1].uuid = "bb000000-0000-0000-0000-000000000002";
  reconfigure(machine);
  EXPECT_THAT(visible("GPU-bb"), ElementsAre(2));
}

TEST_F(DevicesTest, MigInstances) {
  FakeMachine machine = machine_of(3);
  machine.devices[1].mig_parent = machine.devices[2].mig_parent = "bb000000-0000-0000-0000-0000000000ff";
  reconfigure(machine);
  EXPECT_THAT(visible(nullptr), ElementsAre(0, 1)) << "at most one instance is seen";
  EXPECT_THAT(visible("MIG-fa4e0000-0000-4000-8000-000000000002"), ElementsAre(2));
  EXPECT_THAT(visible("GPU-fa4e0000-0000-4000-8000-000000000002"), ElementsAre(-CUDA_ERROR_NO_DEVICE));
  visible("MIG-fa4e0000-0000-4000-8000-000000000001");
  CUuuid parent = {};
  ASSERT_EQ(cuda_.cuDeviceGetUuid(&parent, 0), CUDA_SUCCESS);
  EXPECT_EQ(static_cast<unsigned char>(parent.bytes[15]), 0xff);
}

TEST_F(DevicesTest, InitFailsAsConfigured) {
  FakeMachine machine;
  machine.init_error = CUDA_ERROR_SYSTEM_DRIVER_MISMATCH;
  reconfigure(machine);
  int version = 0;
  EXPECT_EQ(cuda_.cuInit(0), CUDA_ERROR_SYSTEM_DRIVER_MISMATCH);
  EXPECT_EQ(cuda_.cuDriverGetVersion(&version), CUDA_SUCCESS);
  machine.init_error = CUDA_ERROR_STUB_LIBRARY;
  reconfigure(machine);
  EXPECT_EQ(cuda_.cuInit(0), CUDA_ERROR_STUB_LIBRARY);
  EXPECT_EQ(cuda_.cuDriverGetVersion(&version), CUDA_ERROR_STUB_LIBRARY);
  EXPECT_EQ(cuda_.cuDeviceGetCount(&version), CUDA_ERROR_STUB_LIBRARY);
  reconfigure(machine_of(0));
  EXPECT_EQ(cuda_.cuInit(0), CUDA_ERROR_NO_DEVICE);
}

TEST_F(DevicesTest, AMisspeltConfigurationIsNoConfiguration) {
  EXPECT_THAT(gpu_.errors(), IsEmpty());
  setenv("WCACHE_FAKE_CUDA_FAIL", "cuMemCreate:first=2", 1);
  driver_.restart();
  EXPECT_EQ(cuda_.cuInit(0), CUDA_ERROR_UNKNOWN);
  EXPECT_THAT(gpu_.errors(), HasSubstr("cuMemCreate:first=2"));
  std::string error;
  const auto read = [&](const std::string& text) {
    std::FILE* file = std::fopen((gpu_.directory() / "config").c_str(), "w");
    std::fputs(text.c_str(), file);
    std::fclose(file);
    return fake_cuda::read_config(gpu_.directory() / "config", error).has_value();
  };
  EXPECT_TRUE(read("# a comment\n\ndevices=2\ndevice.1.memory=5\n"));
  EXPECT_FALSE(read("device=2\n"));
  EXPECT_FALSE(read("device.1.memory=5\n"));
  EXPECT_FALSE(read("granularity=2M\n"));
  EXPECT_FALSE(read("device.0.uuid=12\n"));
  EXPECT_THAT(error, HasSubstr("device.0.uuid=12"));
}

TEST_F(DevicesTest, WhatADeviceIs) {
  FakeMachine machine = machine_of(2);
  machine.devices[1] = {.uuid = "",
                        .name = "A very long name",
                        .mig_parent = "",
                        .pci = "0001:ab:1f.0",
                        .memory = 123456789,
                        .attributes = {{103, 0}}};
  machine.attributes = {{20, 3}};
  reconfigure(machine);
  ASSERT_EQ(cuda_.cuInit(0), CUDA_SUCCESS);
  char text[8] = {};
  std::size_t bytes = 0;
  EXPECT_EQ(cuda_.cuDeviceGetName(text, sizeof text, 1), CUDA_SUCCESS);
  EXPECT_STREQ(text, "A very ");
  char pci[16] = {};
  EXPECT_EQ(cuda_.cuDeviceGetPCIBusId(pci, sizeof pci, 1), CUDA_SUCCESS);
  EXPECT_STREQ(pci, "0001:ab:1f.0");
  EXPECT_EQ(attribute(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, 1), 0xab);
  EXPECT_EQ(cuda_.cuDeviceTotalMem_v2(&bytes, 1), CUDA_SUCCESS);
  EXPECT_EQ(bytes, 123456789u);
  EXPECT_EQ(attribute(103, 0), 1);
  EXPECT_EQ(attribute(103, 1), 0);
  EXPECT_EQ(attribute(20, 0), 3);
  EXPECT_EQ(attribute(102), 1);
  int value = 0;
  EXPECT_EQ(cuda_.cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_MAX, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda_.cuDeviceTotalMem_v2(&bytes, 2), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(cuda_.cuDeviceTotalMem_v2(nullptr, 1), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(DevicesTest, FunctionsByBaseName) {
  void* address = nullptr;
  CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  ASSERT_EQ(cuda_.cuGetProcAddress_v2("cuMemAlloc", &address, 12000, 0, &status), CUDA_SUCCESS);
  EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SUCCESS);
  EXPECT_EQ(address, reinterpret_cast<void*>(cuda_.cuMemAlloc_v2));
  ASSERT_EQ(cuda_.cuGetProcAddress_v2("cuDeviceGetUuid", &address, 11030, 0, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(address, reinterpret_cast<void*>(cuda_.cuDeviceGetUuid));
  ASSERT_EQ(cuda_.cuGetProcAddress_v2("cuMemCreate", &address, 10000, 0, &status), CUDA_SUCCESS);
  EXPECT_EQ(status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
  EXPECT_EQ(address, nullptr);
  ASSERT_EQ(cuda_.cuGetProcAddress_v2("cuNothing", &address, 12000, 0, &status), CUDA_SUCCESS);
  EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  EXPECT_EQ(cuda_.cuGetProcAddress_v2("cuInit", &address, 13010, 0, &status), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(DevicesTest, ErrorTexts) {
  const char* text = nullptr;
  EXPECT_EQ(cuda_.cuGetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &text), CUDA_SUCCESS);
  EXPECT_STREQ(text, "CUDA_ERROR_OUT_OF_MEMORY");
  EXPECT_EQ(cuda_.cuGetErrorString(CUDA_ERROR_OUT_OF_MEMORY, &text), CUDA_SUCCESS);
  EXPECT_STREQ(text, "out of memory");
  EXPECT_EQ(cuda_.cuGetErrorName(static_cast<CUresult>(12345), &text), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(text, nullptr);
}

}  // namespace
}  // namespace wcache::testing

#include "daemon/memory/cuda/devices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/unit/daemon/memory/cuda/cuda_loading.h"

namespace wcache {
namespace {

using testing::FakeMachine;
using ::testing::HasSubstr;

constexpr const char* kOne = "0f3a1111-2222-3333-4444-555566667777";
constexpr const char* kTwo = "0f3b1111-2222-3333-4444-555566667777";
constexpr const char* kPart = "aaaa1111-2222-3333-4444-555566667777";

FakeMachine three_devices() {
  FakeMachine machine;
  machine.devices.resize(3);
  machine.devices[0].uuid = kOne;
  machine.devices[0].name = "First";
  machine.devices[1].uuid = kTwo;
  machine.devices[1].name = "Second";
  machine.devices[1].attributes = {{103, 0}, {20, 3}};
  machine.devices[2].uuid = kPart;
  machine.devices[2].name = "Third MIG 1g";
  machine.devices[2].mig_parent = kTwo;
  machine.driver_version = 12040;
  return machine;
}

class CudaDevices : public testing::CudaTest {
 protected:
  CudaDevices() : CudaTest(three_devices()) {
    auto loaded = load_cuda_driver(testing::FakeGpu::library());
    EXPECT_TRUE(loaded) << loaded.error().message;
    driver_ = loaded.value();
  }

  std::string found(std::string_view uuid) {
    const auto device = find_cuda_device(*driver_, uuid);
    return device ? device->name : std::string(to_string(device.error().reason));
  }

  std::shared_ptr<const CudaDriver> driver_;
};

TEST_F(CudaDevices, AreToldAsTheDriverShowsThemAndNoContextIsMade) {
  const auto devices = cuda_devices(*driver_);
  ASSERT_TRUE(devices) << devices.error().message;
  ASSERT_EQ(devices->size(), 3u);
  EXPECT_EQ((*devices)[0].uuid, std::string("GPU-") + kOne);
  EXPECT_EQ((*devices)[0].name, "First");
  EXPECT_EQ((*devices)[0].total_nbytes, 1u << 30);
  EXPECT_TRUE((*devices)[0].vmm_handles);
  EXPECT_FALSE((*devices)[0].mig);
  EXPECT_EQ((*devices)[0].compute_mode, 0);
  EXPECT_FALSE((*devices)[1].vmm_handles);
  EXPECT_EQ((*devices)[1].compute_mode, 3);
  EXPECT_EQ((*devices)[2].uuid, std::string("MIG-") + kPart);
  EXPECT_TRUE((*devices)[2].mig);
  EXPECT_EQ((*devices)[2].ordinal, 2);
  EXPECT_EQ(gpu_.contexts().size(), 0u);
  EXPECT_EQ(cuda_driver_version(*driver_), 12040);
  EXPECT_EQ(cuda_version_text(12040), "12.4");
}

TEST_F(CudaDevices, AreFoundByUuidOrItsBeginning) {
  EXPECT_EQ(found(std::string("GPU-") + kTwo), "Second");
  EXPECT_EQ(found("GPU-0f3b"), "Second");
  EXPECT_EQ(found("MIG-"), "Third MIG 1g");
  EXPECT_EQ(found("GPU-0f3"), "invalid");
  EXPECT_EQ(found("GPU-1"), "not-found");
  EXPECT_EQ(found(kOne), "not-found");
  EXPECT_THAT(find_cuda_device(*driver_, "GPU-1").error().hint,
              HasSubstr(std::string("GPU-") + kTwo + " (Second)"));
}

TEST_F(CudaDevices, AnErrorOfTheDriverIsPassedOn) {
  for (const char* function : {"cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetUuid", "cuDeviceGetUuid_v2",
                               "cuDeviceGetName", "cuDeviceTotalMem_v2", "cuDeviceGetAttribute"}) {
    control_.reset();
    control_.fail(std::string(function) + ":1=999");
    EXPECT_EQ(found("GPU-0f3b"), "io") << function;
  }
}

}  // namespace
}  // namespace wcache

#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/entry_plan.h"
#include "daemon/fill/fill.h"
#include "daemon/memory/cuda/devices.h"
#include "daemon/memory/cuda/load.h"
#include "daemon/memory/cuda/loading.h"
#include "tests/fake_cuda/fake_gpu.h"
#include "tests/support/descriptors.h"
#include "tests/unit/daemon/fill/fake_disk.h"
#include "tests/unit/daemon/fill/random_draft.h"
#include "tests/unit/daemon/memory/cuda/filled_entry.h"

namespace wcache::testing {

inline constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

using test::open_descriptors;

/// A machine with a fake GPU, in this process.
class CudaTest : public ::testing::Test {
 protected:
  explicit CudaTest(const FakeMachine& machine = {}) : gpu_(machine) { gpu_.enter_here(); }

  void reconfigure(const FakeMachine& machine) {
    gpu_.configure(machine);
    control_.restart();
  }

  /// As wcached finds it; an Error where it does not.
  Result<CudaTarget> find_target(std::optional<DeviceIpc> ipc = std::nullopt, int device = 0) {
    auto driver = load_cuda_driver(FakeGpu::library());
    if (!driver) return fail(driver.error());
    auto found = find_cuda_device(**driver, "GPU-" + FakeGpu::default_uuid(device));
    if (!found) return fail(found.error());
    const auto chosen = choose_ipc(*found, ipc);
    if (!chosen) return fail(chosen.error());
    CudaTarget target;
    target.driver = std::move(*driver);
    target.device = std::move(*found);
    target.ipc = *chosen;
    target.slab_nbytes = 2 * kMiB;
    return target;
  }

  void expect_nothing_left() const {
    EXPECT_EQ(gpu_.leaks(getpid()), std::vector<std::string>());
    EXPECT_EQ(gpu_.used_bytes(0), 0u);
    EXPECT_EQ(gpu_.contexts().size(), 0u);
    EXPECT_EQ(gpu_.errors(), "");
  }

  /// What hung ends, and so does the process, as far as the driver knows: what it had is gone.
  void end_hung_process() {
    gpu_.let_copies_go();
    control_.restart();
    EXPECT_EQ(gpu_.used_bytes(0), 0u);
    EXPECT_EQ(gpu_.contexts().size(), 0u);
  }

  FakeGpu gpu_;
  FakeDriver control_;
};

}  // namespace wcache::testing

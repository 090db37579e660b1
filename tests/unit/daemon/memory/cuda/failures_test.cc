#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <string>
#include <vector>

#include "daemon/memory/cuda/driver.h"
#include "tests/unit/daemon/memory/cuda/cuda_loading.h"

namespace wcache {
namespace {

using testing::FakeDisk;
using testing::kMiB;

#define WCACHE_TEXT_OF(name) #name
#define WCACHE_EXPORTED(name) WCACHE_TEXT_OF(name),

/// Every function of the table, by the name that the driver exports.
const std::vector<std::string>& driver_functions() {
  static const std::vector<std::string> names{WCACHE_CUDA_FUNCTIONS(WCACHE_EXPORTED) "cuDeviceGetUuid"};
  return names;
}

/// A draft with a literal header and a file byte for byte, in slabs of their own.
EntryPlan small_plan(FakeDisk& disk) {
  EntryPlan plan;
  plan.sources.push_back(disk.add("a", testing::random_bytes(3 * kMiB + 17, 1)));
  plan.sources.push_back(disk.add("b", testing::random_bytes(2 * kMiB, 2)));
  plan.images.push_back(testing::whole_image(plan.sources[0], 0));
  ImagePlan draft;
  draft.name = "draft";
  draft.kind = FileKind::safetensors;
  draft.head = std::string(1000, 'h');
  draft.nbytes = 1000 + 300 + kMiB;
  draft.pieces = {{1000, 1, 77, 300}, {1300, 1, kMiB - 5, kMiB}};
  draft.segments = {{0, 1000}, {1000, 300}, {1300, kMiB}};
  plan.images.push_back(draft);
  return plan;
}

class CudaFailures : public testing::CudaTest, public ::testing::WithParamInterface<DeviceIpc> {
 protected:
  CudaFailures() : plan_(small_plan(disk_)) {
    options_.workers = 1;
    options_.depth = 3;
    disk_.most_queues = 1u << 30;
  }

  Result<Filled> find_and_load() {
    auto target = find_target(GetParam());
    if (!target) return fail(target.error());
    target->idle = std::chrono::hours(1);
    return load(plan_, disk_, *target, options_);
  }

  /// Runs `scenario` with the n-th call of a function failing, for each n there is and several codes; it must
  /// leave nothing, whether it fails or does without. Returns how many calls failed in all.
  std::size_t walk(const std::string& function, const std::function<Status()>& scenario) {
    std::size_t failed = 0;
    for (const CUresult code :
         {CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED}) {
      for (std::uint64_t n = 1; n <= 60; ++n) {
        SCOPED_TRACE(function + ":" + std::to_string(n) + "=" + std::to_string(code));
        failure_ = function + ":" + std::to_string(n) + "=" + std::to_string(code);
        const Status done = scenario();
        const bool reached = control_.calls(function) >= n;
        control_.reset();
        if (!done) {
          EXPECT_TRUE(reached) << done.error().message;
          EXPECT_NE(done.error().reason, Reason::internal) << done.error().message;
          EXPECT_FALSE(done.error().message.empty());
        }
        expect_nothing_left();
        EXPECT_EQ(testing::open_descriptors(), descriptors_);
        if (::testing::Test::HasFailure() || !reached) break;
        ++failed;
      }
    }
    return failed;
  }

  void begin_failing() {
    control_.reset();
    control_.fail(failure_);
  }

  FakeDisk disk_;
  EntryPlan plan_;
  FillOptions options_;
  std::string failure_;
  std::size_t descriptors_ = 0;
};

TEST_P(CudaFailures, AFillLeavesNothingWhicheverCallFails) {
  const auto scenario = [this]() -> Status {
    begin_failing();
    auto filled = find_and_load();
    if (!filled) return fail(filled.error());
    // Done without: then everything is right.
    control_.fail("");
    expect_holds(*filled->entry, plan_, disk_);
    return {};
  };
  failure_ = "";
  ASSERT_TRUE(scenario());
  descriptors_ = testing::open_descriptors();
  std::size_t failed = 0;
  for (const std::string& function : driver_functions()) {
    failed += walk(function, scenario);
    if (HasFailure()) return;
  }
  EXPECT_GT(failed, 300u);
}

TEST_P(CudaFailures, AReadLeavesNothingWhicheverCallFails) {
  const auto scenario = [this]() -> Status {
    control_.reset();
    auto filled = find_and_load();
    if (!filled) return fail(filled.error());
    const bool had_context = filled->entry->has_context();
    begin_failing();
    Status read;
    for (std::size_t i = 0; i < plan_.images.size() && read; ++i) {
      std::vector<std::byte> bytes(plan_.images[i].nbytes);
      read = filled->entry->read(i, 0, bytes);
      EXPECT_TRUE(!read || bytes == testing::expected_image(plan_, disk_, i));
    }
    control_.fail("");
    if (!read) {
      EXPECT_EQ(filled->entry->has_context(), had_context);
      EXPECT_TRUE(had_context || gpu_.leaks(getpid()).empty());
    }
    expect_holds(*filled->entry, plan_, disk_);
    return read;
  };
  failure_ = "";
  ASSERT_TRUE(scenario());
  descriptors_ = testing::open_descriptors();
  std::size_t failed = 0;
  for (const std::string& function : driver_functions()) {
    failed += walk(function, scenario);
    if (HasFailure()) return;
  }
  EXPECT_GT(failed, 60u);
}

/// The n-th call of each function fails for good.
TEST_P(CudaFailures, ADriverThatRefusesForGoodIsAnErrorNotAHang) {
  for (const char* function : {"cuMemcpyHtoDAsync_v2", "cuEventRecord", "cuCtxPushCurrent_v2",
                               "cuMemHostRegister_v2", "cuStreamCreate", "cuMemGetInfo_v2"}) {
    control_.reset();
    control_.fail(std::string(function) + ":*=999");
    const auto filled = find_and_load();
    ASSERT_FALSE(filled) << function;
    EXPECT_EQ(filled.error().reason, Reason::io) << function << ": " << filled.error().message;
    control_.restart();
    expect_nothing_left();
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, CudaFailures, ::testing::Values(DeviceIpc::vmm, DeviceIpc::legacy),
                         [](const auto& way) { return std::string(to_string(way.param)); });

}  // namespace
}  // namespace wcache

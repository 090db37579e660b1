#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/memory/cuda/driver.h"
#include "tests/unit/daemon/memory/cuda/cuda_loading.h"
#include "tests/unit/daemon/memory/cuda/troubled_driver.h"

namespace wcache {
namespace {

using testing::FakeDisk;
using testing::FilledEntry;
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

/// Looked at again and again: how often depends on the moment.
bool polls(std::string_view function) {
  return function == "cuEventQuery" || function == "cuStreamQuery";
}

class CudaFailures : public testing::CudaTest, public ::testing::WithParamInterface<DeviceIpc> {
 protected:
  static constexpr std::uint64_t kMostCalls = 200;

  CudaFailures() : plan_(small_plan(disk_)) {
    options_.workers = 1;
    options_.depth = 3;
    disk_.most_queues = 1u << 30;
  }

  CudaTarget patient_target() {
    CudaTarget target = find_target(GetParam()).value();
    target.idle = std::chrono::hours(1);
    return target;
  }
  Result<FilledEntry> load_to(const CudaTarget& target) { return load_on_device(plan_, disk_, target, options_); }

  /// What was done with a call failing: how it ended, and how many calls of the function were made meanwhile.
  struct Done {
    Status status;
    std::uint64_t calls = 0;
  };
  /// `work` with `failure_`, and nothing else.
  Done with_failure(const std::string& function, const std::function<Status()>& work) {
    control_.reset();
    control_.fail(failure_);
    Done done{work(), control_.calls(function)};
    control_.fail("");
    return done;
  }

  using Scenario = std::function<Done(const std::string& function)>;
  using MayFail = std::function<bool(std::string_view function, CUresult code)>;

  /// Runs `scenario` with the n-th call of a function failing, for each n there is and several codes: an
  /// error of that code's kind, unless it is one of those that it may do without, and nothing is left.
  /// Returns how many calls failed in all.
  std::size_t walk(const std::string& function, const Scenario& scenario, const MayFail& may_fail) {
    std::size_t failed = 0;
    for (const auto& [code, reason] : {std::pair{CUDA_ERROR_OUT_OF_MEMORY, Reason::over_budget},
                                       {CUDA_ERROR_INVALID_VALUE, Reason::io},
                                       {CUDA_ERROR_NOT_SUPPORTED, Reason::unsupported}}) {
      for (std::uint64_t n = 1; n <= (polls(function) ? 5 : kMostCalls); ++n) {
        failure_ = function + ":" + std::to_string(n) + "=" + std::to_string(code);
        SCOPED_TRACE(failure_);
        const Done done = scenario(function);
        const bool reached = done.calls >= n;
        if (!done.status) {
          EXPECT_TRUE(reached) << done.status.error().message;
          EXPECT_EQ(done.status.error().reason, reason) << done.status.error().message;
          EXPECT_FALSE(done.status.error().message.empty());
        } else if (reached) {
          EXPECT_TRUE(may_fail(function, code));
        }
        expect_only_the_hold();
        if (::testing::Test::HasFailure() || !reached) break;
        EXPECT_LT(n, kMostCalls) << "there may be more calls";
        ++failed;
      }
    }
    return failed;
  }

  std::size_t walk_all(const Scenario& scenario, const MayFail& may_fail) {
    held_.emplace(control_);
    failure_ = "";
    EXPECT_TRUE(scenario("cuInit").status);
    descriptors_ = testing::open_descriptors();
    std::size_t failed = 0;
    for (const std::string& function : driver_functions()) {
      if (!HasFailure()) failed += walk(function, scenario, may_fail);
    }
    return failed;
  }

  /// Of what the process had but for `held_`.
  void expect_only_the_hold() const {
    EXPECT_EQ(gpu_.leaks(getpid()), std::vector<std::string>{testing::HeldContext::kLeak});
    EXPECT_EQ(gpu_.used_bytes(0), 0u);
    EXPECT_EQ(gpu_.errors(), "");
    EXPECT_EQ(testing::open_descriptors(), descriptors_);
  }

  FakeDisk disk_;
  EntryPlan plan_;
  FillOptions options_;
  std::string failure_;
  std::size_t descriptors_ = 0;
  std::optional<testing::HeldContext> held_;
};

TEST_P(CudaFailures, AFillLeavesNothingWhicheverCallFails) {
  const CudaTarget target = patient_target();
  const auto fill = [&](const std::string& function) {
    std::optional<Result<FilledEntry>> filled;
    const Done done = with_failure(function, [&]() -> Status {
      filled.emplace(load_to(target));
      return *filled ? Status{} : fail(filled->error());
    });
    if (*filled) expect_holds(*(*filled)->entry, plan_, disk_);
    return done;
  };
  EXPECT_GT(walk_all(fill, [](std::string_view, CUresult) { return false; }), 200u);
}

TEST_P(CudaFailures, AReadLeavesNothingWhicheverCallFails) {
  const CudaTarget target = patient_target();
  const auto read_all = [&](const std::string& function) {
    const auto filled = load_to(target);
    const bool had_context = filled->entry->has_context();
    const Done done = with_failure(function, [&] {
      Status read;
      for (std::size_t i = 0; i < plan_.images.size() && read; ++i) {
        std::vector<std::byte> bytes(plan_.images[i].nbytes);
        read = filled->entry->read(i, 0, bytes);
        EXPECT_TRUE(!read || bytes == testing::expected_image(plan_, disk_, i));
      }
      return read;
    });
    if (!done.status) {
      EXPECT_EQ(filled->entry->has_context(), had_context);
    }
    expect_holds(*filled->entry, plan_, disk_);
    return done;
  };
  // Whether there are mappings for reading alone can only be tried.
  const auto may_fail = [](std::string_view function, CUresult code) {
    return function == "cuMemSetAccess" && code != CUDA_ERROR_OUT_OF_MEMORY;
  };
  EXPECT_GT(walk_all(read_all, may_fail), 40u);
}

TEST_P(CudaFailures, AnEntryThatGoesLeavesNothingWhicheverCallFails) {
  const CudaTarget target = patient_target();
  const auto drop = [&](const std::string& function) {
    auto filled = load_to(target);
    std::array<std::byte, 8> out{};
    EXPECT_TRUE(filled->entry->read(0, 0, out));
    return with_failure(function, [&] {
      filled->entry.reset();
      return Status{};
    });
  };
  EXPECT_GT(walk_all(drop, [](std::string_view, CUresult) { return true; }), 20u);
}

/// What is given back after that is refused as well, once each.
TEST_P(CudaFailures, AFillLeavesNothingWhenWhatItGivesBackIsRefusedToo) {
  CudaTarget target = patient_target();
  held_.emplace(control_);
  target.driver = testing::troubled_driver(*target.driver);
  { const auto warm = load_to(target); }
  descriptors_ = testing::open_descriptors();
  std::uint64_t n = 1;
  for (bool reached = true; reached && !HasFailure(); ++n) {
    SCOPED_TRACE(n);
    ASSERT_LT(n, 5000u);
    testing::Trouble::begin(n, CUDA_ERROR_UNKNOWN);
    auto filled = load_to(target);
    if (filled) filled->entry.reset();
    reached = testing::Trouble::end();
    if (!filled) {
      EXPECT_EQ(filled.error().reason, Reason::io) << filled.error().message;
    }
    expect_only_the_hold();
  }
  EXPECT_GT(n, 60u);
}

/// The n-th call of each function fails for good.
TEST_P(CudaFailures, ADriverThatRefusesForGoodIsAnErrorNotAHang) {
  for (const char* function : {"cuMemcpyHtoDAsync_v2", "cuEventRecord", "cuCtxPushCurrent_v2",
                               "cuMemHostRegister_v2", "cuStreamCreate", "cuMemGetInfo_v2"}) {
    control_.reset();
    control_.fail(std::string(function) + ":*=999");
    const auto target = find_target(GetParam());
    ASSERT_TRUE(target) << target.error().message;
    const auto filled = load_to(*target);
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

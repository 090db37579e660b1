#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "tests/fake_cuda/driver_table.h"
#include "tests/fake_cuda/fake_gpu.h"
#include "tests/fake_cuda/test_messages.h"

namespace wcache::testing {

/// A child process of the machine (fake_cuda_child.cc). Its report has been received when the constructor is
/// done.
class ChildProcess {
 public:
  ChildProcess(const FakeGpu& gpu, const std::string& task, std::size_t size = 0);
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;
  ~ChildProcess();

  const Report& report() const { return report_; }
  /// The descriptor it sent; -1 for none. Stays this object's.
  int fd() const { return fd_.get(); }
  void close_fd() { fd_ = fake_cuda::OwnFd(); }
  pid_t pid() const { return pid_; }

  /// Returns when it has done as told.
  void free_memory();
  /// SIGKILL, and waits until it is gone.
  void kill();

 private:
  void wait_until_gone();

  pid_t pid_ = -1;
  bool is_gone_ = false;
  fake_cuda::OwnFd socket_;
  fake_cuda::OwnFd fd_;
  Report report_ = {};
};

/// A machine, and the fake driver in this process.
class FakeCudaTest : public ::testing::Test {
 protected:
  FakeCudaTest() { gpu_.enter_here(); }

  /// Another configuration for this process; what it had is gone.
  void reconfigure(const FakeMachine& machine, std::string_view failures = {});
  /// cuInit, and the primary context of `device` made current.
  void start(CUdevice device = 0);

  CUmemAllocationProp vmm_properties(CUdevice device = 0) const;
  CUmemGenericAllocationHandle create_vmm(std::size_t size);
  /// Reserves and maps; with access unless `access` is 0.
  CUdeviceptr map_vmm(CUmemGenericAllocationHandle handle, std::size_t size, unsigned access);
  void unmap_vmm(CUdeviceptr address, std::size_t size);

  /// By way of pageable memory, so done when this returns.
  CUresult write(CUdeviceptr address, const std::vector<unsigned char>& bytes);
  CUresult read(CUdeviceptr address, std::vector<unsigned char>& bytes);
  std::vector<unsigned char> read_all(CUdeviceptr address, std::size_t size);

  std::uint64_t counter(const std::string& name) const {
    return gpu_.counter(getpid(), name).value_or(~0ull);
  }

  static constexpr std::size_t kMiB = 1 << 20;
  static constexpr std::size_t kGranularity = 2 * kMiB;

  FakeGpu gpu_;
  FakeDriver driver_;
  DriverTable cuda_{driver_.handle()};
};

}  // namespace wcache::testing

#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/device_entry.h"
#include "tests/support/test_entry.h"

namespace wcache::test {

/// A test entry's weights as on a device. Reads can be made to wait and to fail.
class FakeDevice : public DeviceEntry {
 public:
  explicit FakeDevice(TestEntry& entry)
      : bytes_(entry.bytes),
        slabs_(std::move(entry.slabs)),
        handles_(std::move(entry.handles)),
        instance_(entry.instance),
        nbytes_(entry.slab_plan.nbytes()) {}

  DeviceIpc ipc() const override { return handles_.empty() ? DeviceIpc::vmm : DeviceIpc::legacy; }
  std::uint64_t nbytes() const override { return nbytes_; }
  std::span<const Fd> slabs() const override { return slabs_; }
  std::span<const DeviceHandle> handles() const override { return handles_; }
  const std::string& instance() const override { return instance_; }
  bool has_context() const override { return true; }

  Status read(std::size_t image, std::uint64_t offset, std::span<std::byte> out) override {
    std::unique_lock lock(mutex_);
    ++reading_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return !blocked_ || stopped_; });
    --reading_;
    if (stopped_) return fail(Reason::timeout, "stopped");
    if (failure_) return fail(*failure_);
    std::memcpy(out.data(), bytes_.at(image).data() + offset, out.size());
    return {};
  }

  void stop_reads() override {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    changed_.notify_all();
  }

  void block(bool blocked) {
    const std::lock_guard lock(mutex_);
    blocked_ = blocked;
    changed_.notify_all();
  }
  void break_with(std::optional<Error> failure) {
    const std::lock_guard lock(mutex_);
    failure_ = std::move(failure);
  }
  /// Until `count` reads are under way at once; false when that does not come about.
  bool wait_reading(std::size_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(10), [&] { return reading_ == count; });
  }

 private:
  const std::vector<std::string> bytes_;
  const std::vector<Fd> slabs_;
  const std::vector<DeviceHandle> handles_;
  const std::string instance_;
  const std::uint64_t nbytes_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::size_t reading_ = 0;
  bool blocked_ = false;
  bool stopped_ = false;
  std::optional<Error> failure_;
};

}  // namespace wcache::test

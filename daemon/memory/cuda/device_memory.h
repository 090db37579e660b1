#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "core/fd.h"
#include "core/slab_plan.h"
#include "daemon/device_entry.h"
#include "daemon/memory/cuda/context.h"
#include "daemon/memory/cuda/devices.h"
#include "daemon/memory/cuda/driver.h"
#include "daemon/memory/cuda/slabs.h"

namespace wcache {

/// What is left of a fill: the memory of the slabs, and where in it the images lie.
struct FilledSlabs {
  struct Image {
    bool on_device = false;
    std::uint64_t nbytes = 0;
    std::vector<Segment> segments;
  };
  /// legacy: the memory itself, whose context goes after it.
  struct Legacy {
    Legacy(CudaContext held, CudaSlabs filled) : context(std::move(held)), slabs(std::move(filled)) {}
    ~Legacy();
    void forget();  ///< the device may still use it: it stays until the process ends
    CudaContext context;
    std::optional<CudaSlabs> slabs;
  };

  std::shared_ptr<const CudaDriver> driver;
  CudaDevice device;
  SlabPlan plan;
  std::vector<Image> images;       ///< in the plan's order; those in host memory too
  std::vector<Fd> descriptors;     ///< vmm
  std::unique_ptr<Legacy> legacy;  ///< nullptr: vmm
};

/// An entry on a device. Of a vmm entry this process has nothing but descriptors, and a context, the mapped
/// slabs and some pinned memory from a read until no other has come for a while.
class DeviceMemory : public DeviceEntry {
 public:
  struct Times {
    std::chrono::milliseconds idle;      ///< after the last read the context is let go of
    std::chrono::milliseconds patience;  ///< a device that has not copied a few MiB by then hangs
  };

  DeviceMemory(FilledSlabs slabs, std::string instance, Times times);
  /// A device that hangs is not waited for longer than a moment; what it may still use stays.
  ~DeviceMemory() override;

  DeviceIpc ipc() const override { return slabs_.legacy ? DeviceIpc::legacy : DeviceIpc::vmm; }
  std::uint64_t nbytes() const override { return slabs_.plan.nbytes(); }
  std::span<const Fd> slabs() const override { return slabs_.descriptors; }
  std::span<const DeviceHandle> handles() const override { return handles_; }
  const std::string& instance() const override { return instance_; }
  Status read(std::size_t image, std::uint64_t offset, std::span<std::byte> out) override;
  void stop_reads() override { stopping_.request_stop(); }
  bool has_context() const override { return slabs_.legacy != nullptr || reading_; }

 private:
  class Reader;

  Status read_some(std::span<const SlabPart> parts, std::span<std::byte> out);
  Status open_reader();
  void drop_when_idle(const std::stop_token& stop);

  const FilledSlabs slabs_;
  const std::vector<DeviceHandle> handles_;
  const std::string instance_;
  const Times times_;

  std::stop_source stopping_;
  std::atomic<bool> reading_ = false;  // whether there is a reader_

  std::mutex mutex_;
  std::condition_variable_any changed_;                // with mutex_
  std::unique_ptr<Reader> reader_;                     // guarded by mutex_
  std::chrono::steady_clock::time_point last_read_{};  // guarded by mutex_
  std::jthread dropper_;                               // last: it uses all of the above
};

}  // namespace wcache

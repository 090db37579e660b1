#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "core/device_handle.h"
#include "core/result.h"

namespace wcache {

struct CudaDriver;
class ImportedSlabs;
struct MappedSlab;

/// A slab of another process, as it is offered: by a descriptor (cuda-vmm) or by a handle (cuda-ipc).
struct OfferedSlab {
  std::string device_uuid;  ///< "GPU-8-4-4-4-12", "MIG-..."
  std::string instance;     ///< DeviceEntry::instance
  std::uint32_t slab = 0;
  std::uint64_t nbytes = 0;
  int fd = -1;  ///< borrowed; -1: `handle` it is
  std::optional<DeviceHandle> handle;
  /// Whether the offering process is in this one's PID namespace: no handle can be opened from another.
  bool same_pid_namespace = true;
};

/// One use of a slab that is mapped into this process. The mapping goes with the last use, which waits for
/// what the process has asked of the device. Where that cannot be waited for, as while another thread
/// captures a graph, the slab stays mapped, and the next import of a slab that is not mapped and the next
/// last use of any try again. Move-only; what is asked of it may be asked from several threads at once.
class ImportedSlab {
 public:
  ImportedSlab(ImportedSlab&& other) noexcept;
  ImportedSlab& operator=(ImportedSlab&&) = delete;
  ImportedSlab(const ImportedSlab&) = delete;
  ~ImportedSlab();

  int ordinal() const;       ///< of the device, as this process's driver counts
  const void* data() const;  ///< an address on the device, the same for every use
  std::uint64_t nbytes() const;
  /// The driver took a read-only mapping of it. False: it must not be written all the same.
  bool read_only() const;

  /// unsupported in a child that fork(2) made after the slab was mapped: it has the address and not the device.
  Status check_process() const;

  /// Copies from the device; returns when the bytes are there. A range beyond the slab is `invalid`. timeout:
  /// the device has not answered; nothing is written into `out` after that.
  Status read(std::uint64_t offset, std::span<std::byte> out) const;

 private:
  friend class ImportedSlabs;
  explicit ImportedSlab(MappedSlab& mapped) : mapped_(&mapped) {}
  MappedSlab* mapped_;  // null: moved from
};

/// The slabs that a process has mapped: each once, however often it is asked for. Safe for concurrent use;
/// must outlive its uses. One table a process, for the limits of the driver are the process's: a second
/// mapping of a slab takes address space for nothing, and a handle may be opened in one context only.
class ImportedSlabs {
 public:
  using LoadDriver = std::function<Result<std::shared_ptr<const CudaDriver>>()>;

  /// `load` is called by the first call of import or visible, again while it fails, and never without one.
  /// `patience`: how long the device may take for 4 MiB of a read.
  explicit ImportedSlabs(LoadDriver load, std::chrono::milliseconds patience = std::chrono::seconds(30));
  ~ImportedSlabs();

  /// Maps a slab in the primary context of its device, which is that of the CUDA runtime and of torch; the
  /// context that is current for the calling thread stays so. Read-only where the driver can. On an error
  /// nothing of it is left:
  ///   unsupported  no driver; the device is hidden from this process; what the device or driver cannot do; a
  ///                handle from another PID namespace; a process made by fork(2) after the driver had started
  ///   over_budget  no memory left, of addresses or for the context
  ///   not_running  a handle that nothing is behind any more: its daemon has died
  ///   corrupt      the slab is mapped already, with another size or on another device
  ///   io, denied   whatever else the driver says
  Result<ImportedSlab> import(const OfferedSlab& offer);

  /// Whether this process may use the device. False too where there is no driver to ask.
  bool visible(const std::string& device_uuid);

 private:
  friend class ImportedSlab;
  friend struct MappedSlab;
  struct Process;
  Result<Process*> this_process();
  Status load_driver(Process& process);
  static void let_go(MappedSlab& slab);

  const LoadDriver load_;
  const std::chrono::milliseconds patience_;
  std::atomic<Process*> process_;  // of this process, or of the one it was forked from
};

/// A table that loads the driver of this machine (cuda_driver_file).
ImportedSlabs::LoadDriver machine_driver();

}  // namespace wcache

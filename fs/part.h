#pragma once

#include <spdlog/logger.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/device_handle.h"
#include "core/fd.h"
#include "core/manifest.h"
#include "core/result.h"
#include "fs/device_reads.h"
#include "ipc/client.h"

namespace wcache {

/// What one rank's daemon handed over: its manifest, one descriptor for each file of it that is in host
/// memory, and what shares the slabs of the others. Immutable once made but for the daemon's end, shared by
/// everything that serves it. Host memory and slabs with descriptors live as long as this does, whatever
/// becomes of the daemon. Safe for concurrent use.
class Part {
 public:
  /// Maps what is needed to serve.
  /// corrupt: descriptors and manifest disagree in number or size, or somebody could still change one
  /// (core/sealed.h); io: the kernel refuses a mapping. `log` is borrowed, for reads of what is on a device.
  static Result<std::shared_ptr<const Part>> make(Attachment attachment, int daemon_pid, std::string socket,
                                                  spdlog::logger& log);

  const ManifestView& manifest() const { return manifest_; }
  /// The manifest as it was sent, for `.wcache/manifest`.
  int manifest_fd() const { return manifest_fd_.get(); }
  std::span<const std::byte> manifest_bytes() const { return manifest_bytes_.bytes(); }

  /// Whether a file has no image in host memory: `read` gives its bytes.
  bool on_device(std::size_t row) const { return !images_[row].fd; }
  int image_fd(std::size_t row) const { return images_[row].fd.get(); }  ///< -1 on a device
  std::span<const std::byte> image_bytes(std::size_t row) const { return images_[row].bytes.bytes(); }
  /// The descriptors that were handed over: manifest, images, slabs. Borrowed.
  std::vector<int> descriptors() const;

  // How slabs are shared: descriptors (cuda-vmm), or handles (cuda-ipc), or neither.
  std::span<const Fd> slabs() const { return slabs_; }
  std::span<const DeviceHandle> handles() const { return handles_; }
  const std::string& instance() const { return instance_; }
  std::uint64_t slabs_nbytes() const;  ///< of all slabs

  /// Asks the daemon for bytes of a file that is on a device; see DeviceReads::read.
  void read(std::uint32_t row, std::uint64_t offset, std::size_t nbytes, DeviceReads::Answer answer) const;

  /// The daemon is gone, or serves this no more: reads from a device fail from now on. Waits for nothing.
  void lose_daemon() const { reads_.stop(); }
  bool has_daemon() const { return !reads_.stopped(); }

  int daemon_pid() const { return daemon_pid_; }
  const std::string& socket() const { return socket_; }

 private:
  struct Image {
    Fd fd;
    Mapping bytes;
  };
  Part(Fd manifest_fd, Mapping manifest_bytes, ManifestView manifest, int daemon_pid, std::string socket,
       spdlog::logger& log)
      : manifest_fd_(std::move(manifest_fd)),
        manifest_bytes_(std::move(manifest_bytes)),
        manifest_(manifest),
        daemon_pid_(daemon_pid),
        socket_(std::move(socket)),
        reads_(socket_, log) {}
  Status adopt_images(std::vector<Fd> images);
  Status adopt_slabs(std::vector<Fd> slabs, std::vector<DeviceHandle> handles, std::string instance);

  Fd manifest_fd_;
  Mapping manifest_bytes_;
  ManifestView manifest_;  // borrows manifest_bytes_
  std::vector<Image> images_;
  std::vector<Fd> slabs_;
  std::vector<DeviceHandle> handles_;
  std::string instance_;
  const int daemon_pid_;
  const std::string socket_;
  mutable DeviceReads reads_;
};

}  // namespace wcache

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/fd.h"
#include "core/manifest.h"
#include "core/result.h"

namespace wcache {

/// What one rank's daemon handed over: its manifest and one descriptor for each file in it. Immutable once
/// made, shared by everything that serves it; the memory lives as long as this does, whatever becomes of the
/// daemon.
class Part {
 public:
  /// Maps what is needed to serve. `images` are those of the manifest's file rows, in their order.
  /// corrupt: descriptors and manifest disagree in number or size, or somebody could still change one
  /// (core/sealed.h); io: the kernel refuses a mapping.
  static Result<std::shared_ptr<const Part>> make(Fd manifest, std::uint64_t manifest_nbytes,
                                                  std::vector<Fd> images, int daemon_pid, std::string socket);

  const ManifestView& manifest() const { return manifest_; }
  /// The manifest as it was sent, for `.wcache/manifest`.
  int manifest_fd() const { return manifest_fd_.get(); }
  std::span<const std::byte> manifest_bytes() const { return manifest_bytes_.bytes(); }
  int image_fd(std::size_t row) const { return images_[row].fd.get(); }
  std::span<const std::byte> image_bytes(std::size_t row) const { return images_[row].bytes.bytes(); }
  /// Descriptors held: the images and the manifest.
  std::size_t descriptors() const { return images_.size() + 1; }

  int daemon_pid() const { return daemon_pid_; }
  const std::string& socket() const { return socket_; }

 private:
  struct Image {
    Fd fd;
    Mapping bytes;
  };
  Part(Fd manifest_fd, Mapping manifest_bytes, ManifestView manifest)
      : manifest_fd_(std::move(manifest_fd)),
        manifest_bytes_(std::move(manifest_bytes)),
        manifest_(manifest) {}
  Status adopt_images(std::vector<Fd> images);

  Fd manifest_fd_;
  Mapping manifest_bytes_;
  ManifestView manifest_;  // borrows manifest_bytes_
  std::vector<Image> images_;
  int daemon_pid_ = 0;
  std::string socket_;
};

}  // namespace wcache

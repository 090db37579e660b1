#pragma once

#include <filesystem>
#include <memory>

#include "core/fd.h"
#include "daemon/fill/disk.h"

namespace wcache {

/// A regular file of the machine, as both real disks open it.
class SourceFileHandle : public DiskFile {
 public:
  static Result<std::unique_ptr<DiskFile>> open(const std::filesystem::path& path, Access access);

  Result<FileIdentity> identity() const override;
  std::uint64_t alignment() const override { return alignment_; }
  void drop_cache(std::uint64_t offset, std::uint64_t nbytes) override;

  int fd() const { return fd_.get(); }

 private:
  SourceFileHandle(Fd fd, std::uint64_t alignment, std::string path)
      : fd_(std::move(fd)), alignment_(alignment), path_(std::move(path)) {}
  Fd fd_;
  std::uint64_t alignment_;
  std::string path_;
};

}  // namespace wcache

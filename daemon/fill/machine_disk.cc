#include <cerrno>
#include <utility>

#include "daemon/fill/disk.h"
#include "daemon/fill/pread_disk.h"
#include "daemon/fill/uring_disk.h"

namespace wcache {
namespace {

/// Refuses direct access, so that every file is read through the page cache.
class BufferedOnly : public Disk {
 public:
  explicit BufferedOnly(std::unique_ptr<Disk> disk) : disk_(std::move(disk)) {}
  Result<std::unique_ptr<DiskFile>> open(const std::filesystem::path& path, Access access) override {
    if (access == Access::direct)
      return fail(Error{Reason::io, "buffered reads were asked for", {}, {}, EINVAL});
    return disk_->open(path, access);
  }
  Result<std::unique_ptr<ReadQueue>> queue(unsigned depth) override { return disk_->queue(depth); }
  bool blocking() const override { return disk_->blocking(); }

 private:
  std::unique_ptr<Disk> disk_;
};

}  // namespace

Result<DiskOptions> DiskOptions::from_word(std::string_view word) {
  if (word.empty() || word == "io_uring-direct") return DiskOptions{};
  if (word == "io_uring-buffered") return DiskOptions{.io_uring = true, .direct = false};
  if (word == "threads") return DiskOptions{.io_uring = false, .direct = true};
  return fail(Reason::invalid, "there is no way to fill named '" + std::string(word) + "'",
              "io_uring-direct, io_uring-buffered or threads", "WCACHE_FILL_PATH");
}

MachineDisk open_machine_disk(const DiskOptions& options) {
  MachineDisk machine;
  if (!options.io_uring) {
    machine.note = "threads were asked for";
  } else if (auto disk = open_uring_disk(); disk) {
    machine.disk = std::move(*disk);
  } else {
    machine.note = disk.error().message;
  }
  if (!machine.disk) machine.disk = open_pread_disk();
  if (!options.direct) machine.disk = std::make_unique<BufferedOnly>(std::move(machine.disk));
  return machine;
}

}  // namespace wcache

#include "daemon/fill/pread_disk.h"

#include <unistd.h>

#include <cerrno>
#include <deque>

#include "daemon/fill/source_file.h"

namespace wcache {
namespace {

class PreadQueue : public ReadQueue {
 public:
  Status submit(const ReadRequest& request) override {
    waiting_.push_back(request);
    return {};
  }

  Result<std::size_t> reap(std::span<ReadCompletion> out, std::chrono::milliseconds) override {
    if (waiting_.empty() || out.empty()) return std::size_t{0};
    const ReadRequest request = waiting_.front();
    waiting_.pop_front();
    out[0] = {request.tag, cancelled_ ? -ECANCELED : read(request)};
    return std::size_t{1};
  }

  void cancel() override { cancelled_ = true; }

 private:
  static std::int64_t read(const ReadRequest& request) {
    const int fd = static_cast<const SourceFileHandle*>(request.file)->fd();
    const ssize_t n = pread(fd, request.into.data(), request.into.size(), static_cast<off_t>(request.offset));
    return n >= 0 ? n : -errno;
  }

  std::deque<ReadRequest> waiting_;
  bool cancelled_ = false;
};

class PreadDisk : public Disk {
 public:
  Result<std::unique_ptr<DiskFile>> open(const std::filesystem::path& path, Access access) override {
    return SourceFileHandle::open(path, access);
  }
  Result<std::unique_ptr<ReadQueue>> queue(unsigned) override { return std::make_unique<PreadQueue>(); }
  bool blocking() const override { return true; }
};

}  // namespace

std::unique_ptr<Disk> open_pread_disk() {
  return std::make_unique<PreadDisk>();
}

}  // namespace wcache

#include "daemon/fill/uring_disk.h"

#include <liburing.h>

#include <cerrno>
#include <utility>

#include "daemon/fill/source_file.h"

namespace wcache {
namespace {

/// Marks the completions of cancel requests, which nobody waits for.
constexpr std::uint64_t kCancelTag = ~std::uint64_t{0};
/// Every read in flight may be joined by one request to cancel it.
constexpr unsigned kEntriesPerRead = 2;

class Ring {
 public:
  Ring() = default;
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;
  ~Ring() {
    if (open_) io_uring_queue_exit(&ring_);
  }

  Status open(unsigned entries) {
    const int rc = io_uring_queue_init(entries, &ring_, 0);
    if (rc < 0) return fail_errno("io_uring_setup", -rc);
    open_ = true;
    return {};
  }

  io_uring* get() { return &ring_; }

 private:
  io_uring ring_{};
  bool open_ = false;
};

__kernel_timespec timespec_of(std::chrono::milliseconds wait) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(wait);
  return {seconds.count(), std::chrono::nanoseconds(wait - seconds).count()};
}

bool is_no_completion(int rc) {
  return rc == -ETIME || rc == -EINTR || rc == -EAGAIN || rc == -EBUSY;
}

class UringQueue : public ReadQueue {
 public:
  Status open(unsigned depth) {
    in_flight_.reserve(depth);
    return ring_.open(depth * kEntriesPerRead);
  }

  Status submit(const ReadRequest& request) override {
    io_uring_sqe* sqe = io_uring_get_sqe(ring_.get());
    if (sqe == nullptr) return fail(Reason::internal, "more reads than the ring has entries");
    const int fd = static_cast<const SourceFileHandle*>(request.file)->fd();
    io_uring_prep_read(sqe, fd, request.into.data(), static_cast<unsigned>(request.into.size()),
                       request.offset);
    io_uring_sqe_set_data64(sqe, request.tag);
    in_flight_.push_back(request.tag);
    return flush();
  }

  Result<std::size_t> reap(std::span<ReadCompletion> out, std::chrono::milliseconds wait) override {
    __kernel_timespec timeout = timespec_of(wait);
    io_uring_cqe* cqe = nullptr;
    const int rc = io_uring_submit_and_wait_timeout(ring_.get(), &cqe, 1, &timeout, nullptr);
    if (rc < 0 && !is_no_completion(rc)) return fail_errno("io_uring_enter", -rc);
    std::size_t count = 0;
    while (count < out.size() && io_uring_peek_cqe(ring_.get(), &cqe) == 0) {
      const std::uint64_t tag = io_uring_cqe_get_data64(cqe);
      if (tag != kCancelTag) {
        out[count++] = {tag, cqe->res};
        std::erase(in_flight_, tag);
      }
      io_uring_cqe_seen(ring_.get(), cqe);
    }
    return count;
  }

  void cancel() override {
    for (std::uint64_t tag : in_flight_) {
      io_uring_sqe* sqe = io_uring_get_sqe(ring_.get());
      if (sqe == nullptr) break;
      io_uring_prep_cancel64(sqe, tag, 0);
      io_uring_sqe_set_data64(sqe, kCancelTag);
    }
    // What does not go now goes with the next reap.
    static_cast<void>(flush());
  }

 private:
  /// A kernel short of resources takes the entry with the next reap.
  Status flush() {
    const int rc = io_uring_submit(ring_.get());
    if (rc < 0 && !is_no_completion(rc)) return fail_errno("io_uring_enter", -rc);
    return {};
  }

  Ring ring_;
  std::vector<std::uint64_t> in_flight_;
};

class UringDisk : public Disk {
 public:
  Result<std::unique_ptr<DiskFile>> open(const std::filesystem::path& path, Access access) override {
    return SourceFileHandle::open(path, access);
  }
  Result<std::unique_ptr<ReadQueue>> queue(unsigned depth) override {
    auto made = std::make_unique<UringQueue>();
    if (auto s = made->open(depth); !s) return fail(s.error());
    return made;
  }
  bool blocking() const override { return false; }
};

/// A container may let a ring be set up and refuse its use; an old kernel may lack the operation.
Status try_a_ring() {
  Ring ring;
  if (auto s = ring.open(4); !s) return s;
  io_uring_probe* probe = io_uring_get_probe_ring(ring.get());
  if (probe == nullptr) return fail(Reason::unsupported, "io_uring has no probe (before Linux 5.6)");
  const bool reads = io_uring_opcode_supported(probe, IORING_OP_READ) != 0;
  io_uring_free_probe(probe);
  if (!reads) return fail(Reason::unsupported, "io_uring cannot read (before Linux 5.6)");
  io_uring_prep_nop(io_uring_get_sqe(ring.get()));
  const int rc = io_uring_submit_and_wait(ring.get(), 1);
  if (rc < 0) return fail_errno("io_uring_enter", -rc);
  return {};
}

}  // namespace

Result<std::unique_ptr<Disk>> open_uring_disk() {
  if (auto s = try_a_ring(); !s) return fail(s.error());
  return std::make_unique<UringDisk>();
}

}  // namespace wcache

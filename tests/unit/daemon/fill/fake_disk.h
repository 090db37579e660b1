#pragma once

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "daemon/fill/disk.h"

namespace wcache::testing {

/// A disk in memory that answers in any order and fails where a test wants it to. Like a real one it refuses
/// direct reads that are not aligned. Its settings are fixed before the fill starts.
class FakeDisk : public Disk {
 public:
  struct File {
    std::vector<std::byte> bytes;
    FileIdentity identity;                       // as fstat would say
    std::optional<FileIdentity> identity_after;  // from the first read on
    std::atomic<bool> read = false;
    std::atomic<int> drops = 0;
  };

  /// What becomes of a read; nullopt: it succeeds. `nbytes` is what it would give. May be called by several
  /// threads.
  using Fault = std::function<std::optional<std::int64_t>(const std::string& path, std::uint64_t offset,
                                                          std::uint64_t nbytes)>;
  static constexpr std::int64_t kNever = -1'000'000;  ///< the read ends only when cancelled

  Fault fault;
  std::uint64_t seed = 1;
  std::uint64_t direct_alignment = 4096;
  int direct_open_errno = 0;
  bool cancel_works = true;
  bool is_blocking = false;
  unsigned most_queues = 100;

  std::atomic<int> in_flight = 0;
  std::atomic<int> most_in_flight = 0;
  std::atomic<unsigned> queues = 0;
  std::atomic<std::uint64_t> read_nbytes = 0;
  std::atomic<int> misaligned = 0;

  SourceFile add(const std::string& path, std::vector<std::byte> bytes) {
    auto file = std::make_unique<File>();
    file->identity = {1, files_.size() + 10, bytes.size(), 1000, 2000};
    file->bytes = std::move(bytes);
    SourceFile source;
    source.name = path;
    source.path = path;
    source.identity = file->identity;
    files_[path] = std::move(file);
    return source;
  }
  File& file(const std::string& path) { return *files_.at(path); }

  Result<std::unique_ptr<DiskFile>> open(const std::filesystem::path& path, Access access) override {
    const auto found = files_.find(path.string());
    if (found == files_.end()) return fail_errno("opening " + path.string(), ENOENT);
    if (access == Access::direct && direct_open_errno != 0)
      return fail_errno("opening " + path.string(), direct_open_errno);
    const std::uint64_t alignment = access == Access::direct ? direct_alignment : 1;
    return std::make_unique<Handle>(found->first, *found->second, alignment);
  }

  Result<std::unique_ptr<ReadQueue>> queue(unsigned depth) override {
    const unsigned index = queues++;
    if (index >= most_queues) return fail_errno("making a queue", ENOMEM);
    return std::make_unique<Queue>(*this, depth, seed + index);
  }

  bool blocking() const override { return is_blocking; }

 private:
  class Handle : public DiskFile {
   public:
    Handle(std::string name, File& of, std::uint64_t unit)
        : path(std::move(name)), file(of), alignment_(unit) {}
    Result<FileIdentity> identity() const override {
      return file.read && file.identity_after ? *file.identity_after : file.identity;
    }
    std::uint64_t alignment() const override { return alignment_; }
    void drop_cache(std::uint64_t, std::uint64_t) override { ++file.drops; }

    std::string path;
    File& file;

   private:
    std::uint64_t alignment_;
  };

  class Queue : public ReadQueue {
   public:
    Queue(FakeDisk& disk, unsigned depth, std::uint64_t seed) : disk_(disk), depth_(depth), random_(seed) {}
    ~Queue() override { disk_.in_flight -= static_cast<int>(waiting_.size() + hung_.size()); }

    Status submit(const ReadRequest& request) override {
      if (waiting_.size() + hung_.size() >= depth_) return fail(Reason::internal, "more reads than depth");
      waiting_.push_back(request);
      const int now = ++disk_.in_flight;
      int most = disk_.most_in_flight;
      while (now > most && !disk_.most_in_flight.compare_exchange_weak(most, now)) {
      }
      return {};
    }

    Result<std::size_t> reap(std::span<ReadCompletion> out, std::chrono::milliseconds wait) override {
      std::size_t count = 0;
      std::size_t most = 1 + random_() % out.size();
      while (count < most && !waiting_.empty()) {
        std::swap(waiting_[random_() % waiting_.size()], waiting_.back());
        const ReadRequest request = waiting_.back();
        waiting_.pop_back();
        const std::int64_t result = cancelled_ ? -ECANCELED : read(request);
        if (result == kNever) {
          hung_.push_back(request);
          continue;
        }
        --disk_.in_flight;
        out[count++] = {request.tag, result};
      }
      if (count == 0) std::this_thread::sleep_for(std::min(wait, std::chrono::milliseconds(5)));
      return count;
    }

    void cancel() override {
      if (!disk_.cancel_works) return;
      cancelled_ = true;
      waiting_.insert(waiting_.end(), hung_.begin(), hung_.end());
      hung_.clear();
    }

   private:
    std::int64_t read(const ReadRequest& request) {
      const auto* handle = static_cast<const Handle*>(request.file);
      const std::uint64_t unit = handle->alignment();
      if (request.offset % unit != 0 || request.into.size() % unit != 0 ||
          reinterpret_cast<std::uintptr_t>(request.into.data()) % unit != 0) {
        ++disk_.misaligned;
        return -EINVAL;
      }
      handle->file.read = true;
      const auto& bytes = handle->file.bytes;
      const std::uint64_t left = request.offset < bytes.size() ? bytes.size() - request.offset : 0;
      std::uint64_t nbytes = std::min<std::uint64_t>(request.into.size(), left);
      if (disk_.fault) {
        const auto result = disk_.fault(handle->path, request.offset, nbytes);
        if (result && *result < 0) return *result;
        if (result) nbytes = std::min(nbytes, static_cast<std::uint64_t>(*result));
      }
      // A direct read may leave anything behind the end of the file.
      std::memset(request.into.data(), 0xee, unit > 1 ? request.into.size() : nbytes);
      if (nbytes > 0) std::memcpy(request.into.data(), bytes.data() + request.offset, nbytes);
      disk_.read_nbytes += nbytes;
      return static_cast<std::int64_t>(nbytes);
    }

    FakeDisk& disk_;
    unsigned depth_;
    std::mt19937_64 random_;
    std::vector<ReadRequest> waiting_;
    std::vector<ReadRequest> hung_;
    bool cancelled_ = false;
  };

  std::map<std::string, std::unique_ptr<File>> files_;
};

}  // namespace wcache::testing

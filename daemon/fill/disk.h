#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "core/checkpoint/checkpoint.h"
#include "core/result.h"

namespace wcache {

/// The edge between the fill and the machine's storage. Tests put a disk of their own in its place.

enum class Access {
  direct,    ///< O_DIRECT: past the page cache
  buffered,  ///< through the page cache
};

/// An open source file. Safe for concurrent use.
class DiskFile {
 public:
  virtual ~DiskFile() = default;

  /// What the open file looks like now.
  virtual Result<FileIdentity> identity() const = 0;

  /// Offset, length and address of every read must be multiples of it; 1 when buffered.
  virtual std::uint64_t alignment() const = 0;

  /// Lets go of what the page cache holds of a range (nbytes 0: to the end). Advice only.
  virtual void drop_cache(std::uint64_t offset, std::uint64_t nbytes) = 0;
};

struct ReadRequest {
  const DiskFile* file = nullptr;  ///< opened by the same Disk
  std::uint64_t offset = 0;
  std::span<std::byte> into;
  std::uint64_t tag = 0;  ///< comes back with the completion
};

struct ReadCompletion {
  std::uint64_t tag = 0;
  std::int64_t result = 0;  ///< bytes read (fewer at the end of the file, or any time), or -errno
};

/// Reads in flight. One thread uses a queue at a time. Destroying it with reads in flight gives up on them:
/// the kernel keeps the pages of a direct read, so they land in memory that nobody else gets.
class ReadQueue {
 public:
  virtual ~ReadQueue() = default;

  /// Starts a read. `into` must stay until its completion has been reaped. At most `depth` may be in flight.
  virtual Status submit(const ReadRequest& request) = 0;

  /// Waits until at least one read has ended or `wait` has passed; returns how many completions it put into
  /// `out`.
  virtual Result<std::size_t> reap(std::span<ReadCompletion> out, std::chrono::milliseconds wait) = 0;

  /// Asks that everything in flight end soon. Each read still completes, as it happens with -ECANCELED.
  virtual void cancel() = 0;
};

class Disk {
 public:
  virtual ~Disk() = default;

  /// Opens a regular file. An error with errnum EINVAL: this file cannot be read with this access.
  virtual Result<std::unique_ptr<DiskFile>> open(const std::filesystem::path& path, Access access) = 0;
  virtual Result<std::unique_ptr<ReadQueue>> queue(unsigned depth) = 0;

  /// True when a read takes its thread for as long as it lasts: many queues then make many reads in flight.
  virtual bool blocking() const = 0;
};

struct DiskOptions {
  bool io_uring = true;  ///< false: pread in threads
  bool direct = true;    ///< false: buffered

  /// WCACHE_FILL_PATH = io_uring-direct | io_uring-buffered | threads; nothing or empty: the default. For
  /// tests and for machines where the choice goes wrong.
  static Result<DiskOptions> from_word(std::string_view word);
};

/// The machine's storage: io_uring, or pread where io_uring is refused or not asked for. `note` says why it
/// is pread, or is empty.
struct MachineDisk {
  std::unique_ptr<Disk> disk;
  std::string note;
};
MachineDisk open_machine_disk(const DiskOptions& options = {});

}  // namespace wcache

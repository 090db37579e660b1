#include "fs/device_reads.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <system_error>
#include <utility>

#include "ipc/protocol.h"

namespace wcache {
namespace {

constexpr std::size_t kMaxThreads = 4;
constexpr std::chrono::milliseconds kConnectAgain{10};
/// How long an idle thread keeps its connection and its memory.
constexpr std::chrono::seconds kKeep{30};

Error gone() {
  return Error{Reason::not_running, "the daemon that held the bytes is gone"};
}

/// Memory of a size that nobody can change, so that a mapping of it never faults.
Result<Fd> make_memory() {
  Fd memory = Fd::adopt(memfd_create("wcachefs-read", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory || ftruncate(memory.get(), kMaxCopyNbytes) != 0 ||
      fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return fail_errno("making memory to read into", errno);
  return memory;
}

}  // namespace

DeviceReads::DeviceReads(std::string socket, spdlog::logger& log, std::chrono::milliseconds wait)
    : socket_(std::move(socket)), log_(log), wait_(wait) {}

DeviceReads::~DeviceReads() {
  stop();
  for (std::thread& thread : threads_) thread.join();
}

void DeviceReads::read(std::uint32_t file, std::uint64_t offset, std::size_t nbytes, Answer answer) {
  {
    std::unique_lock lock(mutex_);
    if (!stopped_ && jobs_.size() >= idle_ && threads_.size() < kMaxThreads) try {
        threads_.emplace_back([this] { work(); });
      } catch (const std::system_error& e) {
        log_.warn("no thread to read from a device: {}", e.what());
      }
    if (!stopped_ && !threads_.empty()) {
      jobs_.push_back({file, offset, nbytes, deadline_in(wait_), std::move(answer)});
      changed_.notify_all();  // one alone might be a thread that waits to connect
      return;
    }
  }
  answer(fail(gone()));
}

void DeviceReads::stop() {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  for (const auto& [desk, connection] : connections_) shutdown(connection.get(), SHUT_RDWR);
  changed_.notify_all();
}

bool DeviceReads::stopped() const {
  const std::lock_guard lock(mutex_);
  return stopped_;
}

void DeviceReads::work() {
  Desk desk;
  while (const std::optional<Job> job = next_job(desk)) serve(desk, *job);
  clear(desk);
}

/// nullopt when it is stopped and nothing waits.
std::optional<DeviceReads::Job> DeviceReads::next_job(Desk& desk) {
  const auto any = [this] { return stopped_ || !jobs_.empty(); };
  std::unique_lock lock(mutex_);
  ++idle_;
  if (!changed_.wait_for(lock, kKeep, any)) {
    lock.unlock();
    clear(desk);
    lock.lock();
    changed_.wait(lock, any);
  }
  --idle_;
  if (jobs_.empty()) return std::nullopt;
  Job job = std::move(jobs_.front());
  jobs_.pop_front();
  return job;
}

void DeviceReads::serve(Desk& desk, const Job& job) {
  Result<std::span<const std::byte>> bytes = fail(gone());
  try {
    bytes = fetch(desk, job);
  } catch (const std::exception& e) {
    bytes = fail(Reason::internal, e.what());
  }
  if (!bytes) {
    // What is still under way on this connection may yet write to this memory.
    clear(desk);
    log_.log(stopped() ? spdlog::level::debug : spdlog::level::warn,
             "{}: {} bytes from {} on of file {} were not read: {}", socket_, job.nbytes, job.offset,
             job.file, bytes.error().message);
  }
  job.answer(std::move(bytes));
}

Result<std::span<const std::byte>> DeviceReads::fetch(Desk& desk, const Job& job) {
  if (std::chrono::steady_clock::now() >= job.deadline)
    return fail(Reason::timeout, "the daemon had no time for it");
  if (Status ready = set_up(desk, job.deadline); !ready) return fail(std::move(ready.error()));
  desk.large.clear();
  for (std::size_t done = 0; done < job.nbytes || job.nbytes == 0;) {
    const std::size_t n = std::min<std::size_t>(kMaxCopyNbytes, job.nbytes - done);
    const CopyRequest which{job.file, job.offset + done, static_cast<std::uint32_t>(n)};
    if (Status copied = desk.client->copy(which, desk.memory.get(), job.deadline); !copied)
      return fail(std::move(copied.error()));
    const std::span<const std::byte> piece = desk.view.bytes().first(n);
    if (n == job.nbytes) return piece;
    desk.large.insert(desk.large.end(), piece.begin(), piece.end());
    done += n;
  }
  return std::span<const std::byte>(desk.large);
}

Status DeviceReads::set_up(Desk& desk, Deadline deadline) {
  if (!desk.memory) {
    Result<Fd> memory = make_memory();
    if (!memory) return fail(std::move(memory.error()));
    Result<Mapping> view =
        Mapping::map(memory->get(), kMaxCopyNbytes, PROT_READ, MAP_SHARED, "memory to read into");
    if (!view) return fail(std::move(view.error()));
    desk.memory = std::move(*memory);
    desk.view = std::move(*view);
  }
  if (desk.client) return {};
  Result<Connection> connection = connect(desk, deadline);
  if (!connection) return fail(std::move(connection.error()));
  Result<Client> client = Client::over(std::move(*connection), Purpose::mount, "wcachefs", deadline);
  if (!client) return fail(std::move(client.error()));
  desk.client = std::move(*client);
  return {};
}

/// A connection that stop() ends. Never waits in connect(2), which nothing could end.
Result<Connection> DeviceReads::connect(const Desk& desk, Deadline deadline) {
  for (;;) {
    Result<Connection> connection = Connection::connect(socket_, Deadline::min());
    Fd second = connection ? Fd::adopt(dup(connection->fd())) : Fd();
    std::unique_lock lock(mutex_);
    if (stopped_) return fail(gone());
    if (connection) {
      if (!second) return fail_errno("a second descriptor of a socket", errno);
      connections_[&desk] = std::move(second);
      return connection;
    }
    const bool busy = connection.error().reason == Reason::timeout;
    if (!busy || std::chrono::steady_clock::now() >= deadline) return connection;
    changed_.wait_for(lock, kConnectAgain, [this] { return stopped_; });
  }
}

void DeviceReads::clear(Desk& desk) {
  {
    const std::lock_guard lock(mutex_);
    connections_.erase(&desk);
  }
  desk = Desk{};
}

}  // namespace wcache

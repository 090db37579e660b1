#include "tests/fake_cuda/copies.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include "tests/fake_cuda/state.h"

namespace wcache::fake_cuda {

namespace {

constexpr std::uint64_t kBounceBytes = 1 << 20;
constexpr std::chrono::milliseconds kHoldPoll(1);

/// Reads or writes a piece's bytes. The kernel reads and writes the host's side, so that host memory which is
/// not there is an error and no crash; and by bare system calls, since a device is no thread whose accesses a
/// sanitizer should order.
template <class Transfer>
bool transfer_all(Transfer transfer, std::uint64_t size) {
  for (std::uint64_t done = 0; done < size;) {
    const long n = transfer(done, size - done);
    if (n <= 0) return false;
    done += static_cast<std::uint64_t>(n);
  }
  return true;
}

bool write_piece(const Piece& piece, const char* host) {
  return transfer_all(
      [&](std::uint64_t done, std::uint64_t rest) {
        return syscall(SYS_pwrite64, piece.physical->fd.get(), host + done, rest,
                       static_cast<off_t>(piece.offset + done));
      },
      piece.size);
}

bool read_piece(const Piece& piece, char* host) {
  return transfer_all(
      [&](std::uint64_t done, std::uint64_t rest) {
        return syscall(SYS_pread64, piece.physical->fd.get(), host + done, rest,
                       static_cast<off_t>(piece.offset + done));
      },
      piece.size);
}

bool write_pieces(const std::vector<Piece>& pieces, CUdeviceptr host) {
  for (const Piece& piece : pieces) {
    if (!write_piece(piece, reinterpret_cast<const char*>(host))) return false;
    host += piece.size;
  }
  return true;
}

bool read_pieces(const std::vector<Piece>& pieces, CUdeviceptr host) {
  for (const Piece& piece : pieces) {
    if (!read_piece(piece, reinterpret_cast<char*>(host))) return false;
    host += piece.size;
  }
  return true;
}

/// [offset, offset + size) of what the pieces are.
std::vector<Piece> part_of(const std::vector<Piece>& pieces, std::uint64_t offset, std::uint64_t size) {
  std::vector<Piece> part;
  for (const Piece& piece : pieces) {
    if (offset < piece.size && size > 0) {
      const std::uint64_t n = std::min(size, piece.size - offset);
      part.push_back({piece.physical, piece.offset + offset, n});
      size -= n;
      offset = 0;
    } else {
      offset -= std::min(offset, piece.size);
    }
  }
  return part;
}

bool copy_pieces(const std::vector<Piece>& to, const std::vector<Piece>& from, std::uint64_t size) {
  std::vector<char> bounce(std::min(size, kBounceBytes));
  const auto address = reinterpret_cast<CUdeviceptr>(bounce.data());
  for (std::uint64_t done = 0; done < size;) {
    const std::uint64_t n = std::min<std::uint64_t>(size - done, bounce.size());
    if (!read_pieces(part_of(from, done, n), address) || !write_pieces(part_of(to, done, n), address))
      return false;
    done += n;
  }
  return true;
}

struct Sides {
  std::vector<Piece> to;
  std::vector<Piece> from;
};

/// Where a copy goes and comes from at this moment.
CUresult look_up(State& state, const Copy& copy, CUdevice device, Sides& sides) {
  CUresult result = CUDA_SUCCESS;
  if (copy.kind != Copy::Kind::from_device) {
    result = resolve(state, copy.destination, copy.size, true, device, sides.to);
  }
  if (result == CUDA_SUCCESS && copy.kind != Copy::Kind::to_device) {
    result = resolve(state, copy.source, copy.size, false, device, sides.from);
  }
  return result;
}

bool transfer(const Copy& copy, const Sides& sides) {
  if (copy.kind == Copy::Kind::to_device) return write_pieces(sides.to, copy.source);
  if (copy.kind == Copy::Kind::from_device) return read_pieces(sides.from, copy.destination);
  return copy_pieces(sides.to, sides.from, copy.size);
}

void count(State& state, const Copy& copy) {
  const auto bytes = static_cast<std::int64_t>(copy.size);
  if (copy.kind == Copy::Kind::to_device) state.counters.add(Counter::bytes_to_device, bytes);
  if (copy.kind == Copy::Kind::from_device) state.counters.add(Counter::bytes_from_device, bytes);
}

}  // namespace

CUresult ask_copy(State& state, std::unique_lock<std::mutex>& lock, CUdevice context, Copy copy,
                  CUstream stream) {
  const std::shared_ptr<Stream> found = find_stream(state, stream, context);
  if (!found) return CUDA_ERROR_INVALID_HANDLE;
  if (copy.size == 0) return CUDA_SUCCESS;
  Sides sides;
  const CUresult result = look_up(state, copy, context, sides);
  if (result == CUDA_ERROR_ILLEGAL_ADDRESS) state.break_context(result);
  if (result != CUDA_SUCCESS) return result;
  if (copy.kind == Copy::Kind::on_device) return ask(state, found, {copy, nullptr, 0, nullptr});

  const std::uintptr_t host = copy.kind == Copy::Kind::to_device ? copy.source : copy.destination;
  if (host == 0) return CUDA_ERROR_INVALID_VALUE;
  const HostMemory::Covered covered = state.host.covers(host, copy.size);
  if (covered == HostMemory::Covered::part) return CUDA_ERROR_INVALID_VALUE;
  if (covered == HostMemory::Covered::whole) return ask(state, found, {copy, nullptr, 0, nullptr});

  state.counters.add(Counter::pageable_copies, 1);
  copy.pageable = true;
  const auto ended = std::make_shared<CUresult>(CUDA_SUCCESS);
  if (const CUresult asked = ask(state, found, {copy, nullptr, 0, ended}); asked != CUDA_SUCCESS)
    return asked;
  wait_for(lock, found);
  return *ended;
}

CUresult do_copy(State& state, std::unique_lock<std::mutex>& lock, const Copy& copy, CUdevice context) {
  const std::chrono::microseconds delay(state.config.copy_delay_us);
  lock.unlock();
  while (!copy.pageable && state.directory.holds_copies()) std::this_thread::sleep_for(kHoldPoll);
  if (delay.count() > 0) std::this_thread::sleep_for(delay);
  lock.lock();
  if (state.sticky != CUDA_SUCCESS) return state.sticky;
  Sides sides;
  bool found = look_up(state, copy, context, sides) == CUDA_SUCCESS;
  bool copied = false;
  if (found) {
    lock.unlock();
    copied = transfer(copy, sides);
    sides = {};
    lock.lock();
  }
  if (copied) count(state, copy);
  if (copied) return CUDA_SUCCESS;
  if (found && copy.pageable) return CUDA_ERROR_INVALID_VALUE;
  state.break_context(CUDA_ERROR_ILLEGAL_ADDRESS);
  return CUDA_ERROR_ILLEGAL_ADDRESS;
}

}  // namespace wcache::fake_cuda

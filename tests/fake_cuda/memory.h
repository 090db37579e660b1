#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tests/fake_cuda/own_fd.h"
#include "tests/fake_cuda/shared_directory.h"

namespace wcache::fake_cuda {

struct State;

/// One allocation's bytes: a file that counts as device memory while its maker's open file description lives
/// (SharedDirectory). Those who have it by a shared descriptor share that description; those who opened a
/// legacy handle have one of their own and see by it when the maker's is gone.
struct Physical {
  OwnFd fd;
  std::string name;
  int place = 0;
  SharedDirectory::Kind kind = SharedDirectory::Kind::vmm;
  std::uint64_t size = 0;   ///< as asked for
  bool exportable = false;  ///< as a descriptor
  bool borrowed = false;    ///< by a legacy handle

  /// The exporter has freed it or died.
  bool is_broken() const;
};

/// Addresses that nothing on the host can be read from or written to.
class AddressRange {
 public:
  AddressRange() = default;
  AddressRange(AddressRange&& other) noexcept;
  AddressRange& operator=(AddressRange&& other) noexcept;
  AddressRange(const AddressRange&) = delete;
  AddressRange& operator=(const AddressRange&) = delete;
  ~AddressRange();

  /// Empty when there are none. `hint` may be 0; `alignment` is a power of two.
  static AddressRange reserve(std::size_t size, std::size_t alignment, CUdeviceptr hint);

  CUdeviceptr base() const { return base_; }
  explicit operator bool() const { return base_ != 0; }

 private:
  CUdeviceptr base_ = 0;
  std::size_t size_ = 0;
};

struct Mapped {
  std::shared_ptr<Physical> physical;
  std::uint64_t size = 0;
  std::map<CUdevice, unsigned> access;  ///< CUmemAccess_flags by device
};

/// A range of device addresses in this process.
struct Region {
  enum class Kind { allocation, ipc, reservation };
  Kind kind = Kind::allocation;
  AddressRange range;
  std::uint64_t size = 0;
  std::shared_ptr<Physical> physical;    ///< of an allocation or an opened IPC handle
  CUdevice context = 0;                  ///< that an allocation or opened IPC handle goes with
  unsigned opens = 0;                    ///< of an IPC handle
  std::map<CUdeviceptr, Mapped> mapped;  ///< of a reservation
};

struct AddressSpace {
  std::map<CUdeviceptr, Region> regions;  ///< by base

  /// The region `address` is in; null when in none.
  Region* find(CUdeviceptr address);
  /// The region whose base is `address`.
  Region* at(CUdeviceptr address);
  Region& add(Region region);
};

/// A part of device memory in one piece.
struct Piece {
  std::shared_ptr<Physical> physical;
  std::uint64_t offset = 0;
  std::uint64_t size = 0;
};

/// What is behind [address, address + size) for a device that means to read or write it: 1 when these are no
/// device addresses, 700 when they may not be used so.
CUresult resolve(State& state, CUdeviceptr address, std::uint64_t size, bool write, CUdevice device,
                 std::vector<Piece>& pieces);

/// Device memory of `size` bytes, within what all processes together may have.
CUresult make_physical(State& state, CUdevice device, SharedDirectory::Kind kind, std::uint64_t size,
                       bool exportable, std::shared_ptr<Physical>& physical);
std::uint64_t free_bytes(const State& state, CUdevice device);

CUresult memory_info(State& state, CUdevice device, std::size_t* free, std::size_t* total);
CUresult allocate(State& state, CUdevice device, CUdeviceptr* address, std::size_t size);
CUresult free_allocation(State& state, std::unique_lock<std::mutex>& lock, CUdeviceptr address);
void free_memory_of(State& state, CUdevice context);

CUresult address_range(State& state, CUdeviceptr* base, std::size_t* size, CUdeviceptr address);
CUresult pointer_attribute(State& state, void* data, CUpointer_attribute attribute, CUdeviceptr address);
CUresult export_dma_buf(State& state, CUdevice device, void* out, CUdeviceptr address, std::size_t size,
                        CUmemRangeHandleType type, unsigned long long flags);

}  // namespace wcache::fake_cuda

#include "tests/fake_cuda/legacy_ipc.h"

#include <fcntl.h>

#include <cstdint>
#include <cstring>
#include <string_view>

#include "tests/fake_cuda/state.h"

namespace wcache::fake_cuda {

namespace {

/// What the 64 opaque bytes are.
struct Handle {
  char magic[8];
  std::uint64_t size;
  char name[48];  ///< of the memory's file, padded with NULs
};
static_assert(sizeof(Handle) == sizeof(CUipcMemHandle));

constexpr std::string_view kMagic = "fakecuda";

Region* opened_before(State& state, std::string_view name) {
  for (auto& [base, region] : state.addresses.regions) {
    if (region.kind == Region::Kind::ipc && region.physical->name == name) return &region;
  }
  return nullptr;
}

CUresult open_region(State& state, CUdevice device, const std::string& name, std::uint64_t size,
                     Region& region) {
  const SharedDirectory::MemoryName parsed = *SharedDirectory::parse_memory_name(name);
  region.kind = Region::Kind::ipc;
  region.size = size;
  region.context = device;
  region.physical = std::make_shared<Physical>();
  region.physical->name = name;
  region.physical->place = parsed.device;
  region.physical->kind = SharedDirectory::Kind::legacy;
  region.physical->size = size;
  region.physical->borrowed = true;
  region.physical->fd = OwnFd(open(state.directory.memory_path(name).c_str(), O_RDWR | O_CLOEXEC));
  if (!region.physical->fd || region.physical->is_broken()) return CUDA_ERROR_INVALID_VALUE;
  region.range = AddressRange::reserve(size, 4096, 0);
  return region.range ? CUDA_SUCCESS : CUDA_ERROR_MAP_FAILED;
}

}  // namespace

CUresult get_ipc_handle(State& state, CUipcMemHandle* handle, CUdeviceptr address) {
  const Region* region = state.addresses.at(address);
  if (!handle || !region || region->kind != Region::Kind::allocation) return CUDA_ERROR_INVALID_VALUE;
  Handle made = {};
  std::memcpy(made.magic, kMagic.data(), sizeof made.magic);
  made.size = region->size;
  region->physical->name.copy(made.name, sizeof made.name - 1);
  std::memcpy(handle, &made, sizeof made);
  return CUDA_SUCCESS;
}

CUresult open_ipc_handle(State& state, CUdevice device, CUdeviceptr* address, const CUipcMemHandle& handle,
                         unsigned flags) {
  Handle given;
  std::memcpy(&given, &handle, sizeof given);
  if (!address || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) return CUDA_ERROR_INVALID_VALUE;
  if (std::string_view(given.magic, sizeof given.magic) != kMagic) return CUDA_ERROR_INVALID_VALUE;
  const std::string name(given.name, strnlen(given.name, sizeof given.name));
  const std::optional<SharedDirectory::MemoryName> parsed = SharedDirectory::parse_memory_name(name);
  if (!parsed || name.find('/') != std::string::npos) return CUDA_ERROR_INVALID_VALUE;
  if (parsed->pid == state.pid) return CUDA_ERROR_INVALID_CONTEXT;
  if (!state.devices.ordinal(parsed->device)) return CUDA_ERROR_INVALID_DEVICE;
  if (parsed->device != state.devices.place(device) && !state.config.peer_access) {
    return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  }
  Region* region = opened_before(state, name);
  if (region && region->physical->is_broken()) return CUDA_ERROR_INVALID_VALUE;
  if (!region) {
    Region made;
    if (const CUresult result = open_region(state, device, name, given.size, made); result != CUDA_SUCCESS) {
      return result;
    }
    region = &state.addresses.add(std::move(made));
  }
  ++region->opens;
  state.counters.add(Counter::ipc, 1);
  *address = region->range.base();
  return CUDA_SUCCESS;
}

CUresult close_ipc_handle(State& state, CUdeviceptr address) {
  Region* region = state.addresses.at(address);
  if (!region || region->kind != Region::Kind::ipc) return CUDA_ERROR_INVALID_VALUE;
  state.counters.add(Counter::ipc, -1);
  if (--region->opens == 0) state.addresses.regions.erase(address);
  return CUDA_SUCCESS;
}

}  // namespace wcache::fake_cuda

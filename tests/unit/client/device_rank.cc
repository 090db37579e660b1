// A daemon of one rank, played by a process that ends as a test wants it to: its weights are on a device of
// the fake machine (tests/fake_cuda).
//
//   device_rank RUN-DIR vmm|legacy SLAB-NBYTES RANK RANKS DEVICE-UUID
//
// Writes "ready" when it serves, and ends with its standard input.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

#include "tests/fake_cuda/driver_table.h"
#include "tests/fake_cuda/fake_gpu.h"
#include "tests/unit/client/device_rank.h"
#include "tests/unit/client/rank_server.h"

namespace wcache {
namespace {

void need(CUresult result) {
  if (result != CUDA_SUCCESS) throw std::runtime_error("CUDA error " + std::to_string(result));
}

/// The device's memory, until the process ends.
class Device {
 public:
  Device() {
    CUcontext context = nullptr;
    need(cuda_.cuInit(0));
    need(cuda_.cuDevicePrimaryCtxRetain(&context, 0));
    need(cuda_.cuCtxSetCurrent(context));
  }

  Fd vmm_slab(const std::string& bytes) {
    CUmemAllocationProp properties = {};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    const CUmemAccessDesc access = {properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle = 0;
    CUdeviceptr address = 0;
    int fd = -1;
    need(cuda_.cuMemCreate(&handle, bytes.size(), &properties, 0));
    need(cuda_.cuMemAddressReserve(&address, bytes.size(), 0, 0, 0));
    need(cuda_.cuMemMap(address, bytes.size(), 0, handle, 0));
    need(cuda_.cuMemSetAccess(address, bytes.size(), &access, 1));
    need(cuda_.cuMemcpyHtoDAsync_v2(address, bytes.data(), bytes.size(), nullptr));
    need(cuda_.cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    return Fd::adopt(fd);
  }

  DeviceHandle legacy_slab(const std::string& bytes) {
    CUdeviceptr address = 0;
    CUipcMemHandle handle = {};
    need(cuda_.cuMemAlloc_v2(&address, bytes.size()));
    need(cuda_.cuMemcpyHtoDAsync_v2(address, bytes.data(), bytes.size(), nullptr));
    need(cuda_.cuIpcGetMemHandle(&handle, address));
    DeviceHandle out;
    std::memcpy(out.data(), &handle, sizeof handle);
    return out;
  }

 private:
  testing::FakeDriver driver_;
  testing::DriverTable cuda_{driver_.handle()};
};

void put_on_device(test::TestEntry& entry, Device& device, bool vmm) {
  const std::string pid = std::to_string(getpid());
  entry.instance = to_hex(digest_of(std::as_bytes(std::span(pid))));
  entry.slabs.clear();
  entry.handles.clear();
  for (const std::string& bytes : slab_bytes(entry)) {
    if (vmm) {
      entry.slabs.push_back(device.vmm_slab(bytes));
    } else {
      entry.handles.push_back(device.legacy_slab(bytes));
    }
  }
}

int run(const RunDir& run_dir, bool vmm, std::uint64_t slab_nbytes, std::uint32_t rank, std::uint32_t ranks,
        const std::string& uuid) {
  const std::string kind = vmm ? "cuda-vmm" : "cuda-ipc";
  test::TestEntryOptions options;
  options.memfd = true;
  options.rank = rank;
  options.node_ranks = ranks;
  options.device = test::TestDevice{kind, uuid, slab_nbytes};
  Device device;
  test::TestEntry entry = test::make_test_entry(test::device_model(), options);
  put_on_device(entry, device, vmm);
  Says says;
  says.device = uuid;
  says.rank = rank;
  says.tier = "cuda";
  says.ipc_kind = kind;
  says.pid = getpid();
  const RankServer server(run_dir, std::move(entry), says);
  std::puts("ready");
  std::fflush(stdout);
  while (std::getchar() != EOF) {
  }
  return 0;
}

}  // namespace
}  // namespace wcache

int main(int argc, char** argv) {
  if (argc != 7) return 2;
  return wcache::run(wcache::RunDir::open(argv[1]).value(), argv[2] == std::string("vmm"),
                     std::strtoull(argv[3], nullptr, 10),
                     static_cast<std::uint32_t>(std::strtoul(argv[4], nullptr, 10)),
                     static_cast<std::uint32_t>(std::strtoul(argv[5], nullptr, 10)), argv[6]);
}

// Another process of the fake machine, driven by the test over a socket at descriptor 3: it does what its
// argument says, sends how that ended (and a descriptor or 64 bytes with it), and then does what each byte
// received says, one byte sent for each: 'f' frees, 'q' ends. When the socket ends, so does it.
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "tests/fake_cuda/driver_table.h"
#include "tests/fake_cuda/test_messages.h"

namespace {

using wcache::testing::DriverTable;
using wcache::testing::Report;

constexpr int kSocket = 3;

struct Child {
  DriverTable cuda;
  CUdeviceptr address = 0;
  Report report = {};
  int fd = -1;

  CUresult start() {
    CUcontext context = nullptr;
    CUresult result = cuda.cuInit(0);
    if (result == CUDA_SUCCESS) result = cuda.cuDevicePrimaryCtxRetain(&context, 0);
    if (result == CUDA_SUCCESS) result = cuda.cuCtxSetCurrent(context);
    return result;
  }

  CUresult fill(std::size_t size) {
    const std::vector<unsigned char> bytes = wcache::testing::pattern(size);
    return cuda.cuMemcpyHtoDAsync_v2(address, bytes.data(), bytes.size(), nullptr);
  }

  CUresult export_vmm(std::size_t size) {
    CUmemAllocationProp properties = {};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    const CUmemAccessDesc access = {properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle = 0;
    CUresult result = cuda.cuMemCreate(&handle, size, &properties, 0);
    if (result == CUDA_SUCCESS) result = cuda.cuMemAddressReserve(&address, size, 0, 0, 0);
    if (result == CUDA_SUCCESS) result = cuda.cuMemMap(address, size, 0, handle, 0);
    if (result == CUDA_SUCCESS) result = cuda.cuMemSetAccess(address, size, &access, 1);
    if (result == CUDA_SUCCESS) result = fill(size);
    if (result == CUDA_SUCCESS) {
      result = cuda.cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    }
    return result;
  }

  CUresult export_legacy(std::size_t size) {
    CUresult result = cuda.cuMemAlloc_v2(&address, size);
    if (result == CUDA_SUCCESS) result = fill(size);
    if (result == CUDA_SUCCESS) result = cuda.cuIpcGetMemHandle(&report.handle, address);
    return result;
  }
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const std::string task = argv[1];
  const std::size_t size = std::strtoull(argv[2], nullptr, 10);
  void* library = dlopen(std::getenv("WCACHE_LIBCUDA"), RTLD_NOW | RTLD_LOCAL);
  if (!library) return 2;
  Child child{DriverTable(library)};
  CUresult result = child.start();
  if (result == CUDA_SUCCESS && task == "vmm") result = child.export_vmm(size);
  if (result == CUDA_SUCCESS && task == "legacy") result = child.export_legacy(size);
  child.report.result = result;
  if (!wcache::testing::send_report(kSocket, child.report, child.fd)) return 1;
  if (child.fd >= 0) close(child.fd);
  for (char command = 0; read(kSocket, &command, 1) == 1 && command != 'q';) {
    if (command == 'f' && child.cuda.cuMemFree_v2(child.address) != CUDA_SUCCESS) return 1;
    if (write(kSocket, &command, 1) != 1) return 1;
  }
  return 0;
}

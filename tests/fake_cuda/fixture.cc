#include "tests/fake_cuda/fixture.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

namespace wcache::testing {

namespace {

std::vector<std::string> whole_environment(const FakeGpu& gpu) {
  std::vector<std::string> variables = gpu.environment();
  for (char** variable = environ; *variable; ++variable) {
    if (!std::string_view(*variable).starts_with("WCACHE_")) variables.emplace_back(*variable);
  }
  return variables;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

ChildProcess::ChildProcess(const FakeGpu& gpu, const std::string& task, std::size_t size) {
  int ends[2] = {-1, -1};
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
    throw std::runtime_error("socketpair");
  socket_ = fake_cuda::OwnFd(ends[0]);
  const fake_cuda::OwnFd theirs(fcntl(ends[1], F_DUPFD_CLOEXEC, 10));
  close(ends[1]);
  std::vector<std::string> arguments = {WCACHE_FAKE_CUDA_CHILD, task, std::to_string(size)};
  std::vector<std::string> variables = whole_environment(gpu);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, theirs.get(), 3);
  const int error = posix_spawn(&pid_, arguments[0].c_str(), &actions, nullptr, pointers(arguments).data(),
                                pointers(variables).data());
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) throw std::runtime_error("cannot start " + arguments[0]);
  int fd = -1;
  if (!receive_report(socket_.get(), report_, fd)) ADD_FAILURE() << "the child process said nothing";
  fd_ = fake_cuda::OwnFd(fd);
}

ChildProcess::~ChildProcess() {
  socket_ = fake_cuda::OwnFd();
  wait_until_gone();
}

void ChildProcess::free_memory() {
  char command = 'f';
  ASSERT_EQ(::write(socket_.get(), &command, 1), 1);
  ASSERT_EQ(::read(socket_.get(), &command, 1), 1) << "the child process could not free its memory";
}

void ChildProcess::kill() {
  ::kill(pid_, SIGKILL);
  wait_until_gone();
}

void ChildProcess::wait_until_gone() {
  if (!is_gone_) waitpid(pid_, nullptr, 0);
  is_gone_ = true;
}

void FakeCudaTest::reconfigure(const FakeMachine& machine, std::string_view failures) {
  gpu_.configure(machine);
  gpu_.enter_here(failures);
}

void FakeCudaTest::start(CUdevice device) {
  CUcontext context = nullptr;
  ASSERT_EQ(cuda_.cuInit(0), CUDA_SUCCESS) << gpu_.errors();
  ASSERT_EQ(cuda_.cuDevicePrimaryCtxRetain(&context, device), CUDA_SUCCESS);
  ASSERT_EQ(cuda_.cuCtxSetCurrent(context), CUDA_SUCCESS);
}

CUmemAllocationProp FakeCudaTest::vmm_properties(CUdevice device) const {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device;
  return properties;
}

CUmemGenericAllocationHandle FakeCudaTest::create_vmm(std::size_t size) {
  const CUmemAllocationProp properties = vmm_properties();
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_EQ(cuda_.cuMemCreate(&handle, size, &properties, 0), CUDA_SUCCESS);
  return handle;
}

CUdeviceptr FakeCudaTest::map_vmm(CUmemGenericAllocationHandle handle, std::size_t size, unsigned access) {
  CUdeviceptr address = 0;
  EXPECT_EQ(cuda_.cuMemAddressReserve(&address, size, 0, 0, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuda_.cuMemMap(address, size, 0, handle, 0), CUDA_SUCCESS);
  if (access == 0) return address;
  CUmemAccessDesc description = {};
  description.location = vmm_properties().location;
  description.flags = static_cast<CUmemAccess_flags>(access);
  EXPECT_EQ(cuda_.cuMemSetAccess(address, size, &description, 1), CUDA_SUCCESS);
  return address;
}

void FakeCudaTest::unmap_vmm(CUdeviceptr address, std::size_t size) {
  EXPECT_EQ(cuda_.cuMemUnmap(address, size), CUDA_SUCCESS);
  EXPECT_EQ(cuda_.cuMemAddressFree(address, size), CUDA_SUCCESS);
}

CUresult FakeCudaTest::write(CUdeviceptr address, const std::vector<unsigned char>& bytes) {
  return cuda_.cuMemcpyHtoDAsync_v2(address, bytes.data(), bytes.size(), nullptr);
}

CUresult FakeCudaTest::read(CUdeviceptr address, std::vector<unsigned char>& bytes) {
  return cuda_.cuMemcpyDtoHAsync_v2(bytes.data(), address, bytes.size(), nullptr);
}

std::vector<unsigned char> FakeCudaTest::read_all(CUdeviceptr address, std::size_t size) {
  std::vector<unsigned char> bytes(size);
  EXPECT_EQ(read(address, bytes), CUDA_SUCCESS);
  return bytes;
}

}  // namespace wcache::testing

#include "tests/fake_cuda/fake_gpu.h"

#include <cuda.h>
#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>

#include "tests/fake_cuda/counters.h"
#include "tests/fake_cuda/shared_directory.h"

namespace wcache::testing {

namespace {

/// In memory where that is: what the fake writes is device memory.
std::filesystem::path make_directory() {
  const std::filesystem::path shm = "/dev/shm";
  const auto parent = access(shm.c_str(), W_OK) == 0 ? shm : std::filesystem::temp_directory_path();
  std::string pattern = (parent / "wcache-fake-cuda-XXXXXX").string();
  if (!mkdtemp(pattern.data())) throw std::runtime_error("cannot make " + pattern);
  return pattern;
}

void write_attributes(std::ostream& out, const std::string& prefix, const std::map<int, int>& attributes) {
  for (const auto& [number, value] : attributes)
    out << prefix << "attribute." << number << '=' << value << '\n';
}

void write_device(std::ostream& out, const std::string& prefix, const FakeDevice& device) {
  if (!device.uuid.empty()) out << prefix << "uuid=" << device.uuid << '\n';
  if (!device.name.empty()) out << prefix << "name=" << device.name << '\n';
  if (!device.mig_parent.empty()) out << prefix << "mig_parent=" << device.mig_parent << '\n';
  if (!device.pci.empty()) out << prefix << "pci=" << device.pci << '\n';
  out << prefix << "memory=" << device.memory << '\n';
  write_attributes(out, prefix, device.attributes);
}

template <class Function>
Function symbol(void* handle, const char* name) {
  void* found = dlsym(handle, name);
  if (!found) throw std::runtime_error(std::string("no ") + name);
  return reinterpret_cast<Function>(found);
}

fake_cuda::SharedDirectory shared(const std::filesystem::path& path) {
  return fake_cuda::SharedDirectory(path);
}

}  // namespace

FakeGpu::FakeGpu(const FakeMachine& machine) : directory_(make_directory()) {
  if (!shared(directory_).prepare()) throw std::runtime_error("cannot prepare " + directory_.string());
  configure(machine);
}

FakeGpu::~FakeGpu() {
  let_copies_go();
  if (!environment_before_.empty()) FakeDriver().restart();
  for (const auto& [name, value] : environment_before_) {
    value ? setenv(name.c_str(), value->c_str(), 1) : unsetenv(name.c_str());
  }
  std::error_code ignored;
  std::filesystem::remove_all(directory_, ignored);
}

void FakeGpu::configure(const FakeMachine& machine) {
  std::ostringstream out;
  out << "devices=" << machine.devices.size() << "\ndriver_version=" << machine.driver_version
      << "\ninit_error=" << machine.init_error << "\ngranularity=" << machine.granularity
      << "\ncopy_delay_us=" << machine.copy_delay_us << "\nread_only_access=" << machine.read_only_access
      << "\npeer_access=" << machine.peer_access << "\ncontext_bytes=" << machine.context_bytes << '\n';
  write_attributes(out, "", machine.attributes);
  for (std::size_t n = 0; n < machine.devices.size(); ++n) {
    write_device(out, "device." + std::to_string(n) + ".", machine.devices[n]);
  }
  const std::filesystem::path temporary = directory_ / "config.new";
  std::ofstream(temporary) << out.str();
  std::filesystem::rename(temporary, directory_ / "config");
}

std::string FakeGpu::library() {
  return WCACHE_FAKE_CUDA_LIBRARY;
}

std::string FakeGpu::default_uuid(int device) {
  char text[37];
  std::snprintf(text, sizeof text, "fa4e0000-0000-4000-8000-0000000000%02x",
                static_cast<unsigned>(device) & 0xff);
  return text;
}

std::vector<std::string> FakeGpu::environment(std::string_view failures) const {
  std::vector<std::string> environment = {"WCACHE_LIBCUDA=" + library(),
                                          "WCACHE_FAKE_CUDA_DIR=" + directory_.string()};
  if (!failures.empty()) environment.push_back("WCACHE_FAKE_CUDA_FAIL=" + std::string(failures));
  return environment;
}

void FakeGpu::enter_here(std::string_view failures) {
  std::vector<std::string> variables = environment(failures);
  if (failures.empty()) variables.push_back("WCACHE_FAKE_CUDA_FAIL=");
  for (const std::string& variable : variables) {
    const std::size_t equals = variable.find('=');
    const std::string name = variable.substr(0, equals);
    const char* before = std::getenv(name.c_str());
    environment_before_.try_emplace(name, before ? std::optional<std::string>(before) : std::nullopt);
    setenv(name.c_str(), variable.c_str() + equals + 1, 1);
  }
  FakeDriver().restart();
}

void FakeGpu::hold_copies() {
  std::ofstream(directory_ / "hold") << '\n';
}

void FakeGpu::let_copies_go() {
  std::error_code ignored;
  std::filesystem::remove(directory_ / "hold", ignored);
}

std::vector<FakeGpu::Context> FakeGpu::contexts() const {
  const fake_cuda::SharedDirectory directory = shared(directory_);
  const fake_cuda::OwnFd lock = directory.lock();
  std::vector<Context> contexts;
  for (const auto& context : directory.contexts()) contexts.push_back({context.device, context.pid});
  return contexts;
}

std::uint64_t FakeGpu::used_bytes(int device) const {
  const fake_cuda::SharedDirectory directory = shared(directory_);
  const fake_cuda::OwnFd lock = directory.lock();
  return directory.usage(device).bytes;
}

std::size_t FakeGpu::live_allocations(int device) const {
  const fake_cuda::SharedDirectory directory = shared(directory_);
  const fake_cuda::OwnFd lock = directory.lock();
  return directory.usage(device).allocations;
}

fake_cuda::OwnFd FakeGpu::occupy(int device, std::uint64_t bytes) const {
  const fake_cuda::SharedDirectory directory = shared(directory_);
  const fake_cuda::OwnFd lock = directory.lock();
  std::string name;
  fake_cuda::OwnFd fd =
      directory.create_memory(device, fake_cuda::SharedDirectory::Kind::legacy, bytes, name);
  if (!fd) throw std::runtime_error("cannot occupy device memory");
  return fd;
}

std::map<std::string, std::uint64_t> FakeGpu::counters(pid_t pid) const {
  std::ifstream in(directory_ / "process" / std::to_string(pid), std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), {}};
  constexpr std::size_t kName = sizeof fake_cuda::CounterRecord::name;
  std::map<std::string, std::uint64_t> counters;
  for (std::size_t at = 0; at + sizeof(fake_cuda::CounterRecord) <= bytes.size();
       at += sizeof(fake_cuda::CounterRecord)) {
    std::uint64_t value = 0;
    std::memcpy(&value, bytes.data() + at + kName, sizeof value);
    counters[std::string(bytes.data() + at, strnlen(bytes.data() + at, kName))] = value;
  }
  return counters;
}

std::optional<std::uint64_t> FakeGpu::counter(pid_t pid, const std::string& name) const {
  const std::map<std::string, std::uint64_t> all = counters(pid);
  const auto found = all.find(name);
  return found == all.end() ? std::nullopt : std::optional(found->second);
}

std::vector<std::string> FakeGpu::leaks(pid_t pid, bool with_contexts) const {
  std::vector<std::string> leaks;
  for (const auto& [name, value] : counters(pid)) {
    if (!name.starts_with("live.") || value == 0 || (!with_contexts && name == "live.contexts")) continue;
    leaks.push_back(name + "=" + std::to_string(static_cast<std::int64_t>(value)));
  }
  return leaks;
}

std::string FakeGpu::errors() const {
  std::ifstream in(directory_ / "errors");
  return {std::istreambuf_iterator<char>(in), {}};
}

FakeDriver::FakeDriver() : handle_(dlopen(FakeGpu::library().c_str(), RTLD_NOW | RTLD_LOCAL)) {
  if (!handle_) throw std::runtime_error(dlerror());
  fail_ = symbol<decltype(fail_)>(handle_, "wcache_fake_cuda_fail");
  calls_ = symbol<decltype(calls_)>(handle_, "wcache_fake_cuda_calls");
  reset_ = symbol<decltype(reset_)>(handle_, "wcache_fake_cuda_reset");
  restart_ = symbol<decltype(restart_)>(handle_, "wcache_fake_cuda_restart");
}

void FakeDriver::fail(const std::string& failures) const {
  if (fail_(failures.c_str()) != 0) throw std::invalid_argument("failures: " + failures);
}

std::uint64_t FakeDriver::calls(const std::string& function) const {
  const unsigned long long calls = calls_(function.c_str());
  if (calls == ~0ull) throw std::invalid_argument("no driver function: " + function);
  return calls;
}

HeldContext::HeldContext(const FakeDriver& driver, int device) : driver_(driver), device_(device) {
  void* const library = driver_.handle();
  CUcontext context = nullptr;
  if (symbol<decltype(&cuInit)>(library, "cuInit")(0) != CUDA_SUCCESS ||
      symbol<decltype(&cuDevicePrimaryCtxRetain)>(library, "cuDevicePrimaryCtxRetain")(&context, device) !=
          CUDA_SUCCESS)
    throw std::runtime_error("no context to hold");
}

HeldContext::~HeldContext() {
  driver_.fail("");
  symbol<decltype(&cuDevicePrimaryCtxRelease)>(driver_.handle(), "cuDevicePrimaryCtxRelease_v2")(device_);
}

}  // namespace wcache::testing

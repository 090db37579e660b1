#include "daemon/memory/cuda/import.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string_view>
#include <utility>

#include "daemon/memory/cuda/context.h"
#include "daemon/memory/cuda/devices.h"
#include "daemon/memory/cuda/driver.h"
#include "daemon/memory/cuda/owned.h"
#include "daemon/memory/cuda/slabs.h"
#include "daemon/memory/cuda/timed_copy.h"

namespace wcache {
namespace {

const void* pointer_of(CUdeviceptr address) {
  return reinterpret_cast<const void*>(address);  // NOLINT: how the driver's users, torch among them, see it
}

std::string title_of(const OfferedSlab& offer) {
  return "slab " + std::to_string(offer.slab) + " on " + offer.device_uuid;
}

std::string key_of(const OfferedSlab& offer) {
  if (!offer.handle) return "vmm " + offer.instance + " " + std::to_string(offer.slab);
  return "ipc " + std::string(reinterpret_cast<const char*>(offer.handle->data()), offer.handle->size());
}

Error not_opened(const CudaDriver& driver, const OfferedSlab& offer, CUresult result) {
  Error error = cuda_error(driver, "opening its handle", result);
  const bool nothing_behind = result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_INVALID_HANDLE ||
                              result == CUDA_ERROR_INVALID_CONTEXT;
  if (nothing_behind && !offer.same_pid_namespace) {
    error.reason = Reason::unsupported;
    error.message +=
        "; its daemon is in another PID namespace, across which no CUDA IPC handle can be opened";
    error.hint = "share the PID namespace (docker run --pid), or preload with --ipc vmm";
  } else if (nothing_behind) {
    error.reason = Reason::not_running;
    error.message += "; nothing is behind the handle any more: memory of --ipc legacy goes with its daemon";
    error.hint = "preload it again; --ipc vmm lets memory outlive its daemon";
  } else if (result == CUDA_ERROR_TOO_MANY_PEERS) {
    error.reason = Reason::over_budget;
  }
  return error;
}

/// The context is current, when it is opened and when it is closed.
Result<CudaOwned<CUdeviceptr>> open_handle(const CudaDriver& driver, const OfferedSlab& offer) {
  CUipcMemHandle handle{};
  static_assert(sizeof handle == sizeof(DeviceHandle));
  std::memcpy(&handle, offer.handle->data(), sizeof handle);
  CUdeviceptr at = 0;
  const CUresult result = driver.cuIpcOpenMemHandle(&at, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  if (result != CUDA_SUCCESS) return fail(not_opened(driver, offer, result));
  return CudaOwned<CUdeviceptr>(at, [&driver](CUdeviceptr p) { return driver.cuIpcCloseMemHandle(p); });
}

Result<CudaDevice> visible_device(const CudaDriver& driver, const std::string& uuid) {
  Result<CudaDevice> device = find_cuda_device(driver, uuid);
  if (device || device.error().reason != Reason::not_found) return device;
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return fail(Reason::unsupported,
              "the device " + uuid + " is not visible to this process" +
                  (visible == nullptr ? std::string() : std::string(": CUDA_VISIBLE_DEVICES=") + visible),
              visible == nullptr ? "in a container give it the device; " + device.error().hint
                                 : "add the device to CUDA_VISIBLE_DEVICES, or open the rank of the entry "
                                   "that is on a visible one; " +
                                       device.error().hint);
}

Error forked() {
  return Error{Reason::unsupported,
               "this process was made by fork(2) after its parent had used CUDA, which cannot be used in it",
               "start processes anew: multiprocessing's \"spawn\""};
}

}  // namespace

struct MappedSlab {
  std::shared_ptr<const CudaDriver> driver;
  std::string key;
  std::string device_uuid;
  std::uint64_t nbytes = 0;
  int ordinal = 0;
  CudaContext context;
  std::optional<SlabMapping> mapping;  // cuda-vmm
  CudaOwned<CUdeviceptr> opened;       // cuda-ipc
  std::unique_ptr<TimedCopies> copies;

  // Of ImportedSlabs::Process, under its mutex.
  ImportedSlabs::Process* home = nullptr;
  std::size_t uses = 0;
  std::uint64_t times_unused = 0;  ///< how often `uses` has become 0
  bool waited_for = false;         ///< a thread that let it go waits for the device

  static Result<std::unique_ptr<MappedSlab>> map(std::shared_ptr<const CudaDriver> driver,
                                                 const OfferedSlab& offer,
                                                 std::chrono::milliseconds patience);
  CUdeviceptr address() const { return mapping ? mapping->address() : opened.get(); }
  /// Waits for what the process has asked of the device: a kernel may still read the slab, and unmapping does
  /// not wait. False: nobody knows whether it is done.
  bool wait() const;
  /// After wait(). The current context is left as it is.
  void unmap();
};

/// What one process has. A process made by fork(2) begins with nothing, whatever its parent held and was
/// about to do at that moment, locks included.
struct ImportedSlabs::Process {
  explicit Process(int number) : pid(number) {}
  ~Process();
  /// Unmaps what nobody uses, all that can be; `lock` is open while it waits.
  void unmap_unused(std::unique_lock<std::mutex>& lock);

  const int pid;
  std::atomic<bool> started = false;  ///< the driver is there, or is being started

  std::mutex
      mutex;  // guards what follows; held while the driver maps, never while anybody waits for a device
  std::shared_ptr<const CudaDriver> driver;
  std::map<std::string, std::unique_ptr<MappedSlab>> mapped;
};

Result<std::unique_ptr<MappedSlab>> MappedSlab::map(std::shared_ptr<const CudaDriver> driver,
                                                    const OfferedSlab& offer,
                                                    std::chrono::milliseconds patience) {
  const Result<CudaDevice> device = visible_device(*driver, offer.device_uuid);
  if (!device) return fail(device.error());
  Result<CudaContext> context = CudaContext::retain(*driver, *device);
  if (!context) return fail(std::move(context.error()));
  std::unique_ptr<MappedSlab> slab(new MappedSlab{driver,
                                                  key_of(offer),
                                                  offer.device_uuid,
                                                  offer.nbytes,
                                                  device->ordinal,
                                                  std::move(*context),
                                                  {},
                                                  {},
                                                  std::make_unique<TimedCopies>(*driver, patience)});
  const Result<CurrentContext> current = CurrentContext::enter(slab->context);
  if (!current) return fail(current.error());
  if (offer.handle) {
    Result<CudaOwned<CUdeviceptr>> opened = open_handle(*driver, offer);
    if (!opened) return fail(std::move(opened.error()));
    slab->opened = std::move(*opened);
  } else {
    Result<SlabMapping> mapping =
        SlabMapping::import(*driver, *device, offer.fd, offer.nbytes, CU_MEM_ACCESS_FLAGS_PROT_READ);
    if (!mapping) return fail(std::move(mapping.error()));
    slab->mapping.emplace(std::move(*mapping));
  }
  return slab;
}

bool MappedSlab::wait() const {
  const CurrentContext current = CurrentContext::enter_to_clean(context);
  if (!current) return false;
  for (int i = 0; i < 2; ++i) {
    const CUresult waited = driver->cuCtxSynchronize();
    // Nothing is queued in a context that is gone.
    if (waited == CUDA_SUCCESS || waited == CUDA_ERROR_CONTEXT_IS_DESTROYED) return true;
  }
  return false;
}

void MappedSlab::unmap() {
  const CurrentContext current = CurrentContext::enter_to_clean(context);
  copies.reset();
  mapping.reset();
  opened.reset();
}

ImportedSlab::ImportedSlab(ImportedSlab&& other) noexcept : mapped_(std::exchange(other.mapped_, nullptr)) {}

ImportedSlab::~ImportedSlab() {
  if (mapped_ != nullptr) ImportedSlabs::let_go(*mapped_);
}

int ImportedSlab::ordinal() const {
  return mapped_->ordinal;
}
const void* ImportedSlab::data() const {
  return pointer_of(mapped_->address());
}
std::uint64_t ImportedSlab::nbytes() const {
  return mapped_->nbytes;
}
bool ImportedSlab::read_only() const {
  return mapped_->mapping && mapped_->mapping->read_only();
}

Status ImportedSlab::check_process() const {
  if (mapped_->home->pid == getpid()) return {};
  return fail(forked());
}

Status ImportedSlab::read(std::uint64_t offset, std::span<std::byte> out) const {
  const MappedSlab& slab = *mapped_;
  if (offset > slab.nbytes || out.size() > slab.nbytes - offset)
    return fail(Reason::invalid, "a slab of " + std::to_string(slab.nbytes) + " bytes has no " +
                                     std::to_string(out.size()) + " at " + std::to_string(offset));
  if (out.empty()) return {};
  const Result<CurrentContext> current = CurrentContext::enter(slab.context);
  if (!current) return fail(current.error());
  return slab.copies->copy(slab.address() + offset, out);
}

ImportedSlabs::Process::~Process() {
  std::unique_lock lock(mutex);
  unmap_unused(lock);
  for (auto& [key, kept] : mapped) static_cast<void>(kept.release());  // the device may still read it
}

void ImportedSlabs::Process::unmap_unused(std::unique_lock<std::mutex>& lock) {
  std::set<const MappedSlab*> kept;
  for (;;) {
    const auto row = std::find_if(mapped.begin(), mapped.end(), [&](const auto& one) {
      return one.second->uses == 0 && !one.second->waited_for && !kept.contains(one.second.get());
    });
    if (row == mapped.end()) return;
    MappedSlab& slab = *row->second;
    const std::uint64_t before = slab.times_unused;
    slab.waited_for = true;  // the row stays where it is
    lock.unlock();
    const bool done = slab.wait();
    lock.lock();
    slab.waited_for = false;
    if (!done) kept.insert(&slab);
    // Used again, or used and let go again: by work that was not waited for.
    if (!done || slab.uses > 0 || slab.times_unused != before) continue;
    std::unique_ptr<MappedSlab> last = std::move(row->second);
    mapped.erase(row);
    lock.unlock();
    last->unmap();
    last.reset();
    lock.lock();
  }
}

ImportedSlabs::ImportedSlabs(LoadDriver load, std::chrono::milliseconds patience)
    : load_(std::move(load)), patience_(patience), process_(new Process(getpid())) {}

ImportedSlabs::~ImportedSlabs() {
  // That of a parent is never dropped: a thread of the parent's may have held its lock.
  if (Process* const own = process_.load(); own->pid == getpid()) delete own;
}

Result<ImportedSlabs::Process*> ImportedSlabs::this_process() {
  Process* known = process_.load();
  if (known->pid == getpid()) return known;
  if (known->started) return fail(forked());
  auto own = std::make_unique<Process>(getpid());
  if (process_.compare_exchange_strong(known, own.get())) return own.release();
  return known;  // another thread's of this process
}

Status ImportedSlabs::load_driver(Process& process) {
  if (process.driver) return {};
  process.started = true;
  Result<std::shared_ptr<const CudaDriver>> driver = load_();
  process.started = driver.has_value();
  if (!driver) return fail(std::move(driver.error()));
  process.driver = std::move(*driver);
  return {};
}

Result<ImportedSlab> ImportedSlabs::import(const OfferedSlab& offer) {
  const auto refuse = [&](Error error) {
    error.message = title_of(offer) + ": " + error.message;
    return fail(std::move(error));
  };
  const Result<Process*> process = this_process();
  if (!process) return refuse(process.error());
  Process& own = **process;
  std::unique_lock lock(own.mutex);
  if (Status loaded = load_driver(own); !loaded) return refuse(std::move(loaded.error()));
  auto row = own.mapped.find(key_of(offer));
  if (row == own.mapped.end()) {
    own.unmap_unused(lock);
    row = own.mapped.find(key_of(offer));
  }
  if (row == own.mapped.end()) {
    Result<std::unique_ptr<MappedSlab>> mapped = MappedSlab::map(own.driver, offer, patience_);
    if (!mapped) return refuse(std::move(mapped.error()));
    (*mapped)->home = &own;
    row = own.mapped.emplace((*mapped)->key, std::move(*mapped)).first;
  }
  MappedSlab& slab = *row->second;
  if (slab.nbytes != offer.nbytes || slab.device_uuid != offer.device_uuid)
    return fail(Reason::corrupt, title_of(offer) + " is mapped already, as " + std::to_string(slab.nbytes) +
                                     " bytes on " + slab.device_uuid);
  ++slab.uses;
  return ImportedSlab(slab);
}

bool ImportedSlabs::visible(const std::string& device_uuid) {
  const Result<Process*> process = this_process();
  if (!process) return false;
  const std::lock_guard lock((*process)->mutex);
  return load_driver(**process) && find_cuda_device(*(*process)->driver, device_uuid);
}

void ImportedSlabs::let_go(MappedSlab& slab) {
  // A child made by fork(2) has no mapping, and the driver does not work in it.
  if (slab.home->pid != getpid()) return;
  std::unique_lock lock(slab.home->mutex);
  if (--slab.uses > 0) return;
  ++slab.times_unused;
  slab.home->unmap_unused(lock);
}

ImportedSlabs::LoadDriver machine_driver() {
  return [] { return load_cuda_driver(cuda_driver_file()); };
}

}  // namespace wcache

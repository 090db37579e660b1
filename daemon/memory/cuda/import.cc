#include "daemon/memory/cuda/import.h"

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

#include "daemon/memory/cuda/context.h"
#include "daemon/memory/cuda/devices.h"
#include "daemon/memory/cuda/driver.h"
#include "daemon/memory/cuda/owned.h"
#include "daemon/memory/cuda/slabs.h"

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

/// By a stream of its own; the context is current.
Status copy_from_device(const CudaDriver& driver, CUdeviceptr from, std::span<std::byte> out) {
  const auto check = [&](CUresult result) { return cuda_check(driver, "copying from the device", result); };
  CUstream made = nullptr;
  if (Status s = check(driver.cuStreamCreate(&made, CU_STREAM_NON_BLOCKING)); !s) return s;
  CudaOwned<CUstream> stream(made, [&driver](CUstream s) { return driver.cuStreamDestroy(s); });
  if (Status s = check(driver.cuMemcpyDtoHAsync(out.data(), from, out.size(), made)); !s) return s;
  return check(driver.cuStreamSynchronize(made));
}

}  // namespace

struct MappedSlab {
  std::shared_ptr<const CudaDriver> driver;
  std::string key;
  std::string device_uuid;
  std::uint64_t nbytes = 0;
  int ordinal = 0;
  std::size_t uses = 0;
  CudaContext context;
  std::optional<SlabMapping> mapping;  // cuda-vmm
  CudaOwned<CUdeviceptr> opened;       // cuda-ipc

  static Result<std::unique_ptr<MappedSlab>> map(std::shared_ptr<const CudaDriver> driver,
                                                 const OfferedSlab& offer);
  CUdeviceptr address() const { return mapping ? mapping->address() : opened.get(); }
  /// Waits for what the process has asked of the device: a kernel may still read the slab, and unmapping does
  /// not wait. The current context is left as it is.
  void unmap();
};

Result<std::unique_ptr<MappedSlab>> MappedSlab::map(std::shared_ptr<const CudaDriver> driver,
                                                    const OfferedSlab& offer) {
  const Result<CudaDevice> device = visible_device(*driver, offer.device_uuid);
  if (!device) return fail(device.error());
  Result<CudaContext> context = CudaContext::retain(*driver, *device);
  if (!context) return fail(std::move(context.error()));
  std::unique_ptr<MappedSlab> slab(new MappedSlab{driver,
                                                  key_of(offer),
                                                  offer.device_uuid,
                                                  offer.nbytes,
                                                  device->ordinal,
                                                  0,
                                                  std::move(*context),
                                                  {},
                                                  {}});
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

void MappedSlab::unmap() {
  const CurrentContext current = CurrentContext::enter_to_clean(context);
  driver->cuCtxSynchronize();
  mapping.reset();
  opened.reset();
}

ImportedSlab::ImportedSlab(ImportedSlab&& other) noexcept
    : table_(other.table_), mapped_(std::exchange(other.mapped_, nullptr)) {}

ImportedSlab::~ImportedSlab() {
  if (mapped_ != nullptr) table_->let_go(*mapped_);
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

Status ImportedSlab::read(std::uint64_t offset, std::span<std::byte> out) const {
  const MappedSlab& slab = *mapped_;
  if (offset > slab.nbytes || out.size() > slab.nbytes - offset)
    return fail(Reason::invalid, "a slab of " + std::to_string(slab.nbytes) + " bytes has no " +
                                     std::to_string(out.size()) + " at " + std::to_string(offset));
  if (out.empty()) return {};
  const Result<CurrentContext> current = CurrentContext::enter(slab.context);
  if (!current) return fail(current.error());
  return copy_from_device(*slab.driver, slab.address() + offset, out);
}

ImportedSlabs::ImportedSlabs(LoadDriver load) : load_(std::move(load)) {}

ImportedSlabs::~ImportedSlabs() = default;

Status ImportedSlabs::load_driver() {
  if (driver_ && pid_ != getpid())
    return fail(Reason::unsupported,
                "this process was made by fork(2) after its parent had used CUDA, which cannot be used in it",
                "start processes anew: multiprocessing's \"spawn\"");
  if (driver_) return {};
  Result<std::shared_ptr<const CudaDriver>> driver = load_();
  if (!driver) return fail(std::move(driver.error()));
  driver_ = std::move(*driver);
  pid_ = getpid();
  return {};
}

Result<ImportedSlab> ImportedSlabs::import(const OfferedSlab& offer) {
  const std::lock_guard lock(mutex_);
  if (Status loaded = load_driver(); !loaded) {
    loaded.error().message = title_of(offer) + ": " + loaded.error().message;
    return fail(std::move(loaded.error()));
  }
  const auto known = mapped_.find(key_of(offer));
  if (known != mapped_.end()) {
    MappedSlab& mapped = *known->second;
    if (mapped.nbytes != offer.nbytes || mapped.device_uuid != offer.device_uuid)
      return fail(Reason::corrupt, title_of(offer) + " is mapped already, as " +
                                       std::to_string(mapped.nbytes) + " bytes on " + mapped.device_uuid);
    ++mapped.uses;
    return ImportedSlab(*this, mapped);
  }
  Result<std::unique_ptr<MappedSlab>> mapped = MappedSlab::map(driver_, offer);
  if (!mapped) {
    mapped.error().message = title_of(offer) + ": " + mapped.error().message;
    return fail(std::move(mapped.error()));
  }
  MappedSlab& row = *mapped_.emplace((*mapped)->key, std::move(*mapped)).first->second;
  row.uses = 1;
  return ImportedSlab(*this, row);
}

bool ImportedSlabs::visible(const std::string& device_uuid) {
  const std::lock_guard lock(mutex_);
  return load_driver() && find_cuda_device(*driver_, device_uuid);
}

void ImportedSlabs::let_go(MappedSlab& mapped) {
  const std::lock_guard lock(mutex_);
  if (--mapped.uses > 0) return;
  const auto row = mapped_.find(mapped.key);
  std::unique_ptr<MappedSlab> last = std::move(row->second);
  mapped_.erase(row);
  // A child made by fork(2) has no mapping, and the driver does not work in it.
  if (pid_ != getpid()) {
    (void)last.release();
    return;
  }
  last->unmap();
}

ImportedSlabs::LoadDriver machine_driver() {
  return [] { return load_cuda_driver(cuda_driver_file()); };
}

}  // namespace wcache

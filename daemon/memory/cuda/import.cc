#include "daemon/memory/cuda/import.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

#include "daemon/memory/cuda/devices.h"
#include "daemon/memory/cuda/driver.h"

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

/// The primary context of a device, kept alive.
class PrimaryContext {
 public:
  static Result<PrimaryContext> retain(const CudaDriver& driver, int ordinal) {
    CUdevice device = 0;
    if (Status s = cuda_check(driver, "asking for a device", driver.cuDeviceGet(&device, ordinal)); !s)
      return fail(s.error());
    CUcontext context = nullptr;
    if (Status s = cuda_check(driver, "making a context", driver.cuDevicePrimaryCtxRetain(&context, device));
        !s)
      return fail(s.error());
    return PrimaryContext(driver, device, context);
  }

  PrimaryContext(PrimaryContext&& other) noexcept
      : driver_(other.driver_), device_(other.device_), context_(std::exchange(other.context_, nullptr)) {}
  PrimaryContext& operator=(PrimaryContext&&) = delete;
  ~PrimaryContext() {
    if (context_ != nullptr) driver_->cuDevicePrimaryCtxRelease(device_);
  }

  CUdevice device() const { return device_; }
  CUcontext get() const { return context_; }

 private:
  PrimaryContext(const CudaDriver& driver, CUdevice device, CUcontext context)
      : driver_(&driver), device_(device), context_(context) {}
  const CudaDriver* driver_;
  CUdevice device_;
  CUcontext context_;
};

/// Makes a context current for the calling thread; the one that was is again at the end.
class Current {
 public:
  static Result<Current> make(const CudaDriver& driver, CUcontext context) {
    if (Status s = cuda_check(driver, "entering the context", driver.cuCtxPushCurrent(context)); !s)
      return fail(s.error());
    return Current(driver);
  }
  Current(Current&& other) noexcept : driver_(std::exchange(other.driver_, nullptr)) {}
  Current& operator=(Current&&) = delete;
  ~Current() {
    CUcontext popped = nullptr;
    if (driver_ != nullptr) driver_->cuCtxPopCurrent(&popped);
  }

 private:
  explicit Current(const CudaDriver& driver) : driver_(&driver) {}
  const CudaDriver* driver_;
};

/// A mapping on the device; taken back in the context where it was made.
class DeviceRange {
 public:
  explicit DeviceRange(const CudaDriver& driver) : driver_(&driver) {}
  DeviceRange(DeviceRange&& other) noexcept
      : driver_(other.driver_),
        reserved_(std::exchange(other.reserved_, 0)),
        mapped_(std::exchange(other.mapped_, false)),
        opened_(std::exchange(other.opened_, 0)),
        nbytes_(other.nbytes_),
        read_only_(other.read_only_) {}
  DeviceRange& operator=(DeviceRange&&) = delete;
  ~DeviceRange() { reset(); }

  void reset() {
    if (const CUdeviceptr opened = std::exchange(opened_, 0); opened != 0)
      driver_->cuIpcCloseMemHandle(opened);
    if (std::exchange(mapped_, false)) driver_->cuMemUnmap(reserved_, nbytes_);
    if (const CUdeviceptr reserved = std::exchange(reserved_, 0); reserved != 0)
      driver_->cuMemAddressFree(reserved, nbytes_);
  }

  CUdeviceptr address() const { return opened_ != 0 ? opened_ : reserved_; }
  bool read_only() const { return read_only_; }

  Status map_descriptor(const OfferedSlab& offer, CUdevice device);
  Status open_handle(const OfferedSlab& offer);

 private:
  Status check(std::string_view what, CUresult result) const { return cuda_check(*driver_, what, result); }
  Status map_memory(CUmemGenericAllocationHandle memory, CUdevice device);
  CUresult allow(CUdevice device, CUmemAccess_flags flags);

  const CudaDriver* driver_;
  CUdeviceptr reserved_ = 0;
  bool mapped_ = false;
  CUdeviceptr opened_ = 0;
  std::uint64_t nbytes_ = 0;
  bool read_only_ = false;
};

Status DeviceRange::map_descriptor(const OfferedSlab& offer, CUdevice device) {
  nbytes_ = offer.nbytes;
  CUmemGenericAllocationHandle memory = 0;
  // The descriptor's number is what the driver wants in place of a pointer; it does not keep it.
  void* const number = reinterpret_cast<void*>(static_cast<std::intptr_t>(offer.fd));  // NOLINT
  if (Status s = check(
          "importing its descriptor",
          driver_->cuMemImportFromShareableHandle(&memory, number, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
      !s)
    return s;
  Status mapped = map_memory(memory, device);
  // The mapping keeps the memory; the handle has served.
  const Status released = check("releasing its handle", driver_->cuMemRelease(memory));
  return mapped ? released : mapped;
}

Status DeviceRange::map_memory(CUmemGenericAllocationHandle memory, CUdevice device) {
  if (Status s = check("reserving addresses", driver_->cuMemAddressReserve(&reserved_, nbytes_, 0, 0, 0)); !s)
    return s;
  if (Status s = check("mapping it", driver_->cuMemMap(reserved_, nbytes_, 0, memory, 0)); !s) return s;
  mapped_ = true;
  CUresult allowed = allow(device, CU_MEM_ACCESS_FLAGS_PROT_READ);
  read_only_ = allowed == CUDA_SUCCESS;
  // Whether a device has read-only mappings is not to be asked, only to be tried.
  if (allowed == CUDA_ERROR_INVALID_VALUE || allowed == CUDA_ERROR_NOT_SUPPORTED)
    allowed = allow(device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  return check("getting access to it", allowed);
}

CUresult DeviceRange::allow(CUdevice device, CUmemAccess_flags flags) {
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = device;
  access.flags = flags;
  return driver_->cuMemSetAccess(reserved_, nbytes_, &access, 1);
}

Status DeviceRange::open_handle(const OfferedSlab& offer) {
  nbytes_ = offer.nbytes;
  CUipcMemHandle handle{};
  static_assert(sizeof handle == sizeof(DeviceHandle));
  std::memcpy(&handle, offer.handle->data(), sizeof handle);
  const CUresult opened = driver_->cuIpcOpenMemHandle(&opened_, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  if (opened == CUDA_SUCCESS) return {};
  opened_ = 0;
  Error error = cuda_error(*driver_, "opening its handle", opened);
  const bool nothing_behind = opened == CUDA_ERROR_INVALID_VALUE || opened == CUDA_ERROR_INVALID_HANDLE ||
                              opened == CUDA_ERROR_INVALID_CONTEXT;
  if (nothing_behind && !offer.same_pid_namespace) {
    error.reason = Reason::unsupported;
    error.message +=
        "; its daemon is in another PID namespace, across which no CUDA IPC handle can be opened";
    error.hint = "share the PID namespace (docker run --pid), or preload with --ipc vmm";
  } else if (nothing_behind) {
    error.reason = Reason::not_running;
    error.message += "; nothing is behind the handle any more: memory of --ipc legacy goes with its daemon";
    error.hint = "preload it again; --ipc vmm lets memory outlive its daemon";
  } else if (opened == CUDA_ERROR_TOO_MANY_PEERS) {
    error.reason = Reason::over_budget;
  }
  return fail(std::move(error));
}

Result<CudaDevice> visible_device(const CudaDriver& driver, const std::string& uuid) {
  Result<CudaDevice> device = find_cuda_device(driver, uuid);
  if (device || device.error().reason != Reason::not_found) return device;
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return fail(Reason::unsupported,
              "the device " + uuid + " is not visible to this process" +
                  (visible == nullptr ? std::string() : std::string(": CUDA_VISIBLE_DEVICES=") + visible),
              visible == nullptr ? "in a container give it the device; " + device.error().hint
                                 : "add the device to CUDA_VISIBLE_DEVICES; " + device.error().hint);
}

/// Of the library's own stream; the context is current.
Status copy_from_device(const CudaDriver& driver, CUdeviceptr from, std::span<std::byte> out) {
  const auto check = [&](std::string_view what, CUresult result) { return cuda_check(driver, what, result); };
  CUstream stream = nullptr;
  if (Status s = check("making a stream", driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING)); !s)
    return s;
  Status copied =
      check("copying from the device", driver.cuMemcpyDtoHAsync(out.data(), from, out.size(), stream));
  if (copied) copied = check("copying from the device", driver.cuStreamSynchronize(stream));
  const Status gone = check("ending a stream", driver.cuStreamDestroy(stream));
  return copied ? gone : copied;
}

}  // namespace

struct MappedSlab {
  std::shared_ptr<const CudaDriver> driver;
  std::string key;
  std::string device_uuid;
  std::uint64_t nbytes = 0;
  int ordinal = 0;
  std::size_t uses = 0;
  PrimaryContext context;
  DeviceRange range;

  static Result<std::unique_ptr<MappedSlab>> map(std::shared_ptr<const CudaDriver> driver,
                                                 const OfferedSlab& offer);
  MappedSlab(std::shared_ptr<const CudaDriver> with, const OfferedSlab& offer, int at, PrimaryContext in,
             DeviceRange mapped)
      : driver(std::move(with)),
        key(key_of(offer)),
        device_uuid(offer.device_uuid),
        nbytes(offer.nbytes),
        ordinal(at),
        context(std::move(in)),
        range(std::move(mapped)) {}
};

Result<std::unique_ptr<MappedSlab>> MappedSlab::map(std::shared_ptr<const CudaDriver> driver,
                                                    const OfferedSlab& offer) {
  const Result<CudaDevice> device = visible_device(*driver, offer.device_uuid);
  if (!device) return fail(device.error());
  Result<PrimaryContext> context = PrimaryContext::retain(*driver, device->ordinal);
  if (!context) return fail(std::move(context.error()));
  const Result<Current> current = Current::make(*driver, context->get());
  if (!current) return fail(current.error());
  DeviceRange range(*driver);
  if (Status s = offer.handle ? range.open_handle(offer) : range.map_descriptor(offer, context->device()); !s)
    return fail(std::move(s.error()));
  return std::make_unique<MappedSlab>(std::move(driver), offer, device->ordinal, std::move(*context),
                                      std::move(range));
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
  return pointer_of(mapped_->range.address());
}
std::uint64_t ImportedSlab::nbytes() const {
  return mapped_->nbytes;
}
bool ImportedSlab::read_only() const {
  return mapped_->range.read_only();
}

Status ImportedSlab::read(std::uint64_t offset, std::span<std::byte> out) const {
  const MappedSlab& slab = *mapped_;
  if (offset > slab.nbytes || out.size() > slab.nbytes - offset)
    return fail(Reason::invalid, "a slab of " + std::to_string(slab.nbytes) + " bytes has no " +
                                     std::to_string(out.size()) + " at " + std::to_string(offset));
  if (out.empty()) return {};
  const Result<Current> current = Current::make(*slab.driver, slab.context.get());
  if (!current) return fail(current.error());
  return copy_from_device(*slab.driver, slab.range.address() + offset, out);
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
  const Result<Current> current = Current::make(*last->driver, last->context.get());
  // Unmapping does not wait for work of the process that still reads the slab.
  if (current) last->driver->cuCtxSynchronize();
  last->range.reset();
}

ImportedSlabs::LoadDriver machine_driver() {
  return [] { return load_cuda_driver(cuda_driver_file()); };
}

}  // namespace wcache

#include "daemon/memory/cuda/driver.h"

#include <dlfcn.h>

#include <cstdlib>
#include <utility>

#include "daemon/memory/cuda/devices.h"

namespace wcache {
namespace {

constexpr const char* kFallBack = "have the weights in host memory (wcache preload --device host)";

// Twice, so that the versioned name is what becomes a text.
#define WCACHE_TEXT_OF(name) #name
#define WCACHE_SYMBOL(name) WCACHE_TEXT_OF(name)

Error no_driver(const std::string& file, const char* why) {
  return Error{
      Reason::unsupported,
      "no CUDA driver: " + file + " cannot be loaded (" + (why == nullptr ? "no reason given" : why) + ")",
      std::string("install NVIDIA's driver, in a container give it the driver's libraries; or ") + kFallBack};
}

Error too_old(const std::string& file, int version, const std::string& lacks) {
  return Error{
      Reason::unsupported,
      "the CUDA driver is too old: " + file +
          (version > 0 ? " is of CUDA " + cuda_version_text(version) : "") + lacks,
      "install a driver of CUDA " + cuda_version_text(kOldestCudaDriver) + " or newer, or " + kFallBack};
}

template <class Function>
bool look_up(void* library, const char* symbol, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, symbol));
  return function != nullptr;
}

/// The first symbol that is not there; nullptr when all are.
const char* find_functions(CudaDriver& driver) {
  void* const library = driver.library.get();
#define WCACHE_CUDA_LOOK_UP(name) \
  if (!look_up(library, WCACHE_SYMBOL(name), driver.name)) return WCACHE_SYMBOL(name);
  WCACHE_CUDA_FUNCTIONS(WCACHE_CUDA_LOOK_UP)
#undef WCACHE_CUDA_LOOK_UP
  return look_up(library, "cuDeviceGetUuid", driver.parent_uuid) ? nullptr : "cuDeviceGetUuid";
}

DeviceTrouble trouble_of(CUresult started) {
  if (started == CUDA_ERROR_STUB_LIBRARY) return DeviceTrouble::stub;
  return started == CUDA_ERROR_NO_DEVICE ? DeviceTrouble::no_device : DeviceTrouble::no_start;
}

Error cannot_start(const CudaDriver& driver, const std::string& file, CUresult result) {
  if (result == CUDA_ERROR_STUB_LIBRARY)
    return Error{
        Reason::unsupported, file + " is the CUDA toolkit's stub, not a driver",
        std::string("point WCACHE_LIBCUDA (or the loader's path) to the driver's libcuda.so.1, or ") +
            kFallBack};
  if (result == CUDA_ERROR_NO_DEVICE) return no_cuda_device();
  Error error = cuda_error(driver, "starting the CUDA driver", result);
  error.reason = Reason::unsupported;
  error.hint = std::string("see nvidia-smi, or ") + kFallBack;
  if (result != CUDA_ERROR_NOT_INITIALIZED) return error;
  error.message += "; as it is in a process made by fork(2) after its parent had used CUDA (as torch does)";
  error.hint = std::string("start processes anew: multiprocessing's \"spawn\"; else ") + error.hint;
  return error;
}

}  // namespace

std::string cuda_driver_file() {
  const char* named = std::getenv("WCACHE_LIBCUDA");
  return named != nullptr && *named != '\0' ? named : "libcuda.so.1";
}

Error no_cuda_device() {
  return Error{
      Reason::unsupported, "the CUDA driver sees no device",
      std::string("see nvidia-smi and CUDA_VISIBLE_DEVICES; in a container give it the device; or ") +
          kFallBack};
}

Result<std::shared_ptr<const CudaDriver>> load_cuda_driver(const std::string& file, DeviceTrouble* trouble) {
  const auto refuse = [&](DeviceTrouble which, Error error) {
    if (trouble != nullptr) *trouble = which;
    return fail(std::move(error));
  };
  auto driver = std::make_shared<CudaDriver>();
  // A driver that was started has threads of its own: it stays.
  void* const handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) return refuse(DeviceTrouble::no_driver, no_driver(file, dlerror()));
  driver->library = std::shared_ptr<void>(handle, dlclose);
  const char* const missing = find_functions(*driver);
  int version = 0;
  if (driver->cuDriverGetVersion != nullptr) driver->cuDriverGetVersion(&version);
  if (missing != nullptr)
    return refuse(DeviceTrouble::too_old, too_old(file, version, std::string(" and lacks ") + missing));
  // The stub answers no question, this one included.
  if (version > 0 && version < kOldestCudaDriver)
    return refuse(DeviceTrouble::too_old, too_old(file, version, ""));
  if (const CUresult started = driver->cuInit(0); started != CUDA_SUCCESS)
    return refuse(trouble_of(started), cannot_start(*driver, file, started));
  return driver;
}

Error cuda_error(const CudaDriver& driver, std::string_view what, CUresult result) {
  const char* name = nullptr;
  const char* text = nullptr;
  driver.cuGetErrorName(result, &name);
  driver.cuGetErrorString(result, &text);
  Error error;
  error.reason = Reason::io;
  error.message = std::string(what) + ": " +
                  (name != nullptr ? name : "CUDA error " + std::to_string(static_cast<int>(result)));
  if (text != nullptr) error.message += std::string(", ") + text;
  switch (result) {
    case CUDA_ERROR_OUT_OF_MEMORY:
      error.reason = Reason::over_budget;
      error.hint = "free memory of the device (nvidia-smi shows who holds it), or evict entries";
      break;
    case CUDA_ERROR_NOT_PERMITTED:
      error.reason = Reason::denied;
      break;
    case CUDA_ERROR_DEVICE_UNAVAILABLE:
      error.reason = Reason::unsupported;
      error.hint =
          "the device takes no further process: nvidia-smi -c DEFAULT ends exclusive-process and prohibited "
          "mode";
      break;
    case CUDA_ERROR_NOT_SUPPORTED:
    case CUDA_ERROR_INVALID_DEVICE:
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_STUB_LIBRARY:
    case CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER:
    case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
      error.reason = Reason::unsupported;
      break;
    default:
      break;
  }
  return error;
}

Status cuda_check(const CudaDriver& driver, std::string_view what, CUresult result,
                  std::string_view out_of_memory) {
  if (result == CUDA_SUCCESS) return {};
  Error error = cuda_error(driver, what, result);
  if (result == CUDA_ERROR_OUT_OF_MEMORY && !out_of_memory.empty()) error.hint = out_of_memory;
  return fail(std::move(error));
}

}  // namespace wcache

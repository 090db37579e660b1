#include "daemon/memory/cuda/context.h"

#include <string>
#include <utility>

namespace wcache {
namespace {

Error no_context(const CudaDriver& driver, const CudaDevice& device, CUresult result) {
  const std::string name = device.uuid + " (" + device.name + ")";
  Error error = cuda_error(driver, "making a context on " + name, result);
  if (result != CUDA_ERROR_DEVICE_UNAVAILABLE) return error;
  if (device.compute_mode == CU_COMPUTEMODE_PROHIBITED)
    error.message = name + " is in prohibited mode: no process may use it";
  else if (device.compute_mode == CU_COMPUTEMODE_EXCLUSIVE_PROCESS)
    error.message = name + " is in exclusive-process mode, and another process uses it";
  return error;
}

}  // namespace

Result<CudaContext> CudaContext::retain(const CudaDriver& driver, const CudaDevice& device) {
  CUdevice handle = 0;
  if (auto s = cuda_check(driver, "asking for " + device.uuid, driver.cuDeviceGet(&handle, device.ordinal));
      !s)
    return fail(s.error());
  CUcontext context = nullptr;
  if (const CUresult result = driver.cuDevicePrimaryCtxRetain(&context, handle); result != CUDA_SUCCESS)
    return fail(no_context(driver, device, result));
  const auto release = [&driver, handle](CUcontext) { return driver.cuDevicePrimaryCtxRelease(handle); };
  return CudaContext(driver, {context, release});
}

Status CudaContext::release() {
  return cuda_check(*driver_, "releasing the context", context_.close());
}

Result<CurrentContext> CurrentContext::enter(const CudaContext& context) {
  const CudaDriver& driver = context.driver();
  if (auto s = cuda_check(driver, "making the context current", driver.cuCtxPushCurrent(context.get())); !s)
    return fail(s.error());
  CurrentContext current;
  current.driver_ = &driver;
  current.current_ = {context.get(), [&driver](CUcontext) {
                        CUcontext popped = nullptr;
                        return driver.cuCtxPopCurrent(&popped);
                      }};
  return current;
}

CurrentContext CurrentContext::enter_to_clean(const CudaContext& context) {
  for (int i = 0; i < 2; ++i)
    if (auto current = enter(context); current) return std::move(*current);
  return {};
}

Status CurrentContext::leave() {
  if (driver_ == nullptr) return {};
  return cuda_check(*driver_, "leaving the context", current_.close());
}

}  // namespace wcache

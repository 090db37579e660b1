// The exported functions that are not about memory: driver, devices, contexts, streams, events.
#include <cstdio>
#include <cstring>

#include "tests/fake_cuda/enter.h"
#include "tests/fake_cuda/errors.h"

using wcache::fake_cuda::Call;
using wcache::fake_cuda::Devices;
using wcache::fake_cuda::enter;
using wcache::fake_cuda::Function;
using wcache::fake_cuda::Needs;
namespace fake = wcache::fake_cuda;

namespace {

CUresult give_text(const std::string& text, char* out, int size) {
  if (!out || size <= 0) return CUDA_ERROR_INVALID_VALUE;
  std::snprintf(out, static_cast<std::size_t>(size), "%s", text.c_str());
  return CUDA_SUCCESS;
}

/// A question about a device that is there, with an answer to put somewhere.
template <class Out, class Answer>
CUresult ask_device(Function function, Out* out, CUdevice device, Answer answer) {
  return enter(function, Needs::initialised, [&](const Call& call) {
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    if (!call.state.devices.has(device)) return CUDA_ERROR_INVALID_DEVICE;
    return answer(call.state.devices);
  });
}

}  // namespace

extern "C" {

CUresult CUDAAPI cuInit(unsigned int flags) {
  return enter(Function::cuInit, Needs::nothing,
               [&](const Call& call) { return fake::initialise(call.state, flags); });
}

CUresult CUDAAPI cuDriverGetVersion(int* version) {
  return enter(Function::cuDriverGetVersion, Needs::nothing, [&](const Call& call) {
    if (!version) return CUDA_ERROR_INVALID_VALUE;
    if (call.state.config.init_error == CUDA_ERROR_STUB_LIBRARY) return CUDA_ERROR_STUB_LIBRARY;
    *version = call.state.config.driver_version;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuGetErrorName(CUresult error, const char** out) {
  return enter(Function::cuGetErrorName, Needs::nothing,
               [&](const Call&) { return fake::error_name(error, out); });
}

CUresult CUDAAPI cuGetErrorString(CUresult error, const char** out) {
  return enter(Function::cuGetErrorString, Needs::nothing,
               [&](const Call&) { return fake::error_text(error, out); });
}

CUresult CUDAAPI cuGetProcAddress_v2(const char* symbol, void** out, int version, cuuint64_t flags,
                                     CUdriverProcAddressQueryResult* status) {
  return enter(Function::cuGetProcAddress_v2, Needs::nothing, [&](const Call& call) {
    return fake::proc_address(symbol, out, version, call.state.config.driver_version, flags, status);
  });
}

CUresult CUDAAPI cuDeviceGetCount(int* count) {
  return enter(Function::cuDeviceGetCount, Needs::initialised, [&](const Call& call) {
    if (!count) return CUDA_ERROR_INVALID_VALUE;
    *count = call.state.devices.count();
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuDeviceGet(CUdevice* out, int ordinal) {
  return ask_device(Function::cuDeviceGet, out, ordinal, [&](const Devices&) {
    *out = ordinal;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuDeviceGetUuid(CUuuid* out, CUdevice device) {
  return ask_device(Function::cuDeviceGetUuid, out, device, [&](const Devices& devices) {
    *out = devices.at(device).mig_parent.value_or(devices.at(device).uuid);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuDeviceGetUuid_v2(CUuuid* out, CUdevice device) {
  return ask_device(Function::cuDeviceGetUuid_v2, out, device, [&](const Devices& devices) {
    *out = devices.at(device).uuid;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuDeviceGetName(char* out, int size, CUdevice device) {
  return ask_device(Function::cuDeviceGetName, out, device,
                    [&](const Devices& devices) { return give_text(devices.at(device).name, out, size); });
}

CUresult CUDAAPI cuDeviceGetPCIBusId(char* out, int size, CUdevice device) {
  return ask_device(Function::cuDeviceGetPCIBusId, out, device,
                    [&](const Devices& devices) { return give_text(devices.at(device).pci, out, size); });
}

CUresult CUDAAPI cuDeviceTotalMem_v2(size_t* out, CUdevice device) {
  return ask_device(Function::cuDeviceTotalMem_v2, out, device, [&](const Devices& devices) {
    *out = devices.at(device).memory;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuDeviceGetAttribute(int* out, CUdevice_attribute attribute, CUdevice device) {
  return ask_device(Function::cuDeviceGetAttribute, out, device, [&](const Devices& devices) {
    const int number = static_cast<int>(attribute);
    if (number <= 0 || number >= CU_DEVICE_ATTRIBUTE_MAX) return CUDA_ERROR_INVALID_VALUE;
    *out = devices.attribute(device, number);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  return enter(Function::cuDevicePrimaryCtxRetain, Needs::initialised,
               [&](const Call& call) { return fake::retain_context(call.state, context, device); });
}

CUresult CUDAAPI cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  return enter(Function::cuDevicePrimaryCtxRelease_v2, Needs::initialised,
               [&](const Call& call) { return fake::release_context(call.state, call.lock, device); });
}

CUresult CUDAAPI cuCtxSetCurrent(CUcontext context) {
  return enter(Function::cuCtxSetCurrent, Needs::initialised,
               [&](const Call& call) { return fake::set_current(call.state, context); });
}

CUresult CUDAAPI cuCtxPushCurrent_v2(CUcontext context) {
  return enter(Function::cuCtxPushCurrent_v2, Needs::initialised,
               [&](const Call& call) { return fake::push_current(call.state, context); });
}

CUresult CUDAAPI cuCtxPopCurrent_v2(CUcontext* context) {
  return enter(Function::cuCtxPopCurrent_v2, Needs::initialised,
               [&](const Call&) { return fake::pop_current(context); });
}

CUresult CUDAAPI cuCtxGetCurrent(CUcontext* context) {
  return enter(Function::cuCtxGetCurrent, Needs::initialised,
               [&](const Call&) { return fake::get_current(context); });
}

CUresult CUDAAPI cuCtxGetDevice(CUdevice* device) {
  return enter(Function::cuCtxGetDevice, Needs::context, [&](const Call& call) {
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    *device = call.device;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuCtxSynchronize(void) {
  return enter(Function::cuCtxSynchronize, Needs::context, [&](const Call& call) {
    fake::wait_for_streams(call.state, call.lock);
    return call.state.sticky;
  });
}

CUresult CUDAAPI cuStreamCreate(CUstream* stream, unsigned int flags) {
  return enter(Function::cuStreamCreate, Needs::context,
               [&](const Call& call) { return fake::create_stream(call.state, call.device, stream, flags); });
}

CUresult CUDAAPI cuStreamQuery(CUstream stream) {
  return enter(Function::cuStreamQuery, Needs::context,
               [&](const Call& call) { return fake::query_stream(call.state, call.device, stream); });
}

CUresult CUDAAPI cuStreamSynchronize(CUstream stream) {
  return enter(Function::cuStreamSynchronize, Needs::context, [&](const Call& call) {
    return fake::synchronize_stream(call.state, call.lock, call.device, stream);
  });
}

CUresult CUDAAPI cuStreamDestroy_v2(CUstream stream) {
  return enter(Function::cuStreamDestroy_v2, Needs::context,
               [&](const Call& call) { return fake::destroy_stream(call.state, stream); });
}

CUresult CUDAAPI cuEventCreate(CUevent* event, unsigned int flags) {
  return enter(Function::cuEventCreate, Needs::context,
               [&](const Call& call) { return fake::create_event(call.state, call.device, event, flags); });
}

CUresult CUDAAPI cuEventRecord(CUevent event, CUstream stream) {
  return enter(Function::cuEventRecord, Needs::context,
               [&](const Call& call) { return fake::record_event(call.state, call.device, event, stream); });
}

CUresult CUDAAPI cuEventQuery(CUevent event) {
  return enter(Function::cuEventQuery, Needs::initialised,
               [&](const Call& call) { return fake::query_event(call.state, event); });
}

CUresult CUDAAPI cuEventSynchronize(CUevent event) {
  return enter(Function::cuEventSynchronize, Needs::context,
               [&](const Call& call) { return fake::synchronize_event(call.state, call.lock, event); });
}

CUresult CUDAAPI cuEventDestroy_v2(CUevent event) {
  return enter(Function::cuEventDestroy_v2, Needs::context,
               [&](const Call& call) { return fake::destroy_event(call.state, event); });
}

}  // extern "C"

#include "daemon/memory/cuda/loading.h"

#include <sys/random.h>

#include <exception>
#include <utility>
#include <vector>

#include "core/digest.h"
#include "daemon/fill/read_plan.h"
#include "daemon/memory/cuda/context.h"
#include "daemon/memory/cuda/device_memory.h"
#include "daemon/memory/cuda/device_sink.h"
#include "daemon/memory/cuda/driver.h"
#include "daemon/memory/cuda/slabs.h"

namespace wcache {
namespace {

Result<std::string> make_instance() {
  Digest random;
  if (getrandom(&random, sizeof random, 0) != sizeof random) return fail_errno("getrandom", errno);
  return to_hex(random);
}

std::vector<FilledSlabs::Image> layout_of(const EntryPlan& plan) {
  std::vector<FilledSlabs::Image> images;
  for (const ImagePlan& image : plan.images) {
    images.push_back({is_weights(image.kind), image.nbytes, {}});
    if (images.back().on_device) images.back().segments = image.segments;
  }
  return images;
}

}  // namespace

struct CudaLoading::State {
  ~State();

  CudaTarget target;
  SlabPlan plan;
  std::vector<FilledSlabs::Image> images;
  EntryPlan weights;
  std::optional<CudaContext> context;
  std::optional<CudaSlabs> slabs;
  std::optional<DeviceSink> sink;
};

CudaLoading::State::~State() {
  if (!context) return;
  if (sink && sink->hung()) {
    if (slabs) slabs->forget();
    context->forget();
    return;
  }
  const CurrentContext current = CurrentContext::enter_to_clean(*context);
  sink.reset();
  slabs.reset();
}

CudaLoading::CudaLoading(std::unique_ptr<State> state) : state_(std::move(state)) {}
CudaLoading::~CudaLoading() = default;

Result<DeviceIpc> choose_ipc(const CudaDevice& device, std::optional<DeviceIpc> asked) {
  if (asked == DeviceIpc::vmm && !device.vmm_handles)
    return fail(
        Reason::unsupported,
        device.uuid + " (" + device.name + ") cannot give its memory away as descriptors, as --ipc vmm asks",
        "use --ipc legacy", "--ipc");
  if (asked) return *asked;
  return device.vmm_handles ? DeviceIpc::vmm : DeviceIpc::legacy;
}

std::string ipc_kind(DeviceIpc ipc) {
  return ipc == DeviceIpc::vmm ? "cuda-vmm" : "cuda-ipc";
}

Result<std::unique_ptr<CudaLoading>> CudaLoading::prepare(const EntryPlan& plan, const CudaTarget& target) {
  const CudaDriver& driver = *target.driver;
  const auto granularity = slab_granularity(driver, target.device, target.ipc);
  if (!granularity) return fail(granularity.error());
  auto slabs = plan_slabs(plan, *granularity, target.slab_nbytes, kMostSlabs);
  if (!slabs) return fail(slabs.error());
  auto state = std::make_unique<State>();
  state->target = target;
  state->plan = std::move(*slabs);
  state->images = layout_of(plan);
  state->weights = weights_of(plan);
  auto context = CudaContext::retain(driver, target.device);
  if (!context) return fail(context.error());
  state->context.emplace(std::move(*context));
  auto current = CurrentContext::enter(*state->context);
  if (!current) return fail(current.error());
  if (auto s = check_free_memory(driver, target.device, state->plan.nbytes()); !s) return fail(s.error());
  if (auto s = current->leave(); !s) return fail(s.error());
  return std::unique_ptr<CudaLoading>(new CudaLoading(std::move(state)));
}

const SlabPlan& CudaLoading::slabs() const {
  return state_->plan;
}

std::uint64_t CudaLoading::staging_bound(const FillOptions& options) const {
  const FillBounds bounds = bounds_of(options);
  const unsigned fixed = state_->target.staging_buffers;
  const unsigned buffers =
      fixed > 0 ? fixed * bounds.workers : bounds.reads + DeviceSink::kSpareBuffers * bounds.workers;
  return buffers * kBounceNbytes;
}

Status CudaLoading::allocate() {
  State& own = *state_;
  auto current = CurrentContext::enter(*own.context);
  if (!current) return fail(current.error());
  auto slabs = CudaSlabs::allocate(*own.target.driver, own.target.device, own.target.ipc, own.plan.slabs);
  if (!slabs) return fail(slabs.error());
  own.slabs.emplace(std::move(*slabs));
  DevicePlaces places;
  for (std::size_t i = 0; i < own.slabs->size(); ++i) places.slabs.push_back(own.slabs->address(i));
  for (std::size_t i = 0; i < own.images.size(); ++i)
    if (own.images[i].on_device) places.images.push_back(own.plan.images[i]);
  own.sink.emplace(own.weights, std::move(places), *own.context, own.target.staging_buffers);
  return current->leave();
}

FillSink& CudaLoading::sink() {
  return *state_->sink;
}

Result<std::unique_ptr<DeviceEntry>> CudaLoading::finish() {
  State& own = *state_;
  auto instance = make_instance();
  if (!instance) return fail(instance.error());
  own.sink.reset();
  FilledSlabs filled;
  if (own.target.ipc == DeviceIpc::vmm) {
    auto current = CurrentContext::enter(*own.context);
    if (!current) return fail(current.error());
    auto descriptors = std::move(*own.slabs).unmap();
    if (!descriptors) return fail(descriptors.error());
    own.slabs.reset();
    if (auto s = current->leave(); !s) return fail(s.error());
    if (auto s = own.context->release(); !s) return fail(s.error());
    filled.descriptors = std::move(*descriptors);
  } else {
    filled.legacy = std::make_unique<FilledSlabs::Legacy>(std::move(*own.context), std::move(*own.slabs));
  }
  own.slabs.reset();
  own.context.reset();
  filled.driver = own.target.driver;
  filled.device = own.target.device;
  filled.plan = std::move(own.plan);
  filled.images = std::move(own.images);
  try {
    return std::make_unique<DeviceMemory>(std::move(filled), std::move(*instance),
                                          DeviceMemory::Times{own.target.idle, own.target.patience});
  } catch (const std::exception& e) {
    return fail(Reason::io, std::string("starting a thread: ") + e.what());
  }
}

}  // namespace wcache

#include "daemon/memory/cuda/device_memory.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "daemon/memory/cuda/pinned.h"

namespace wcache {
namespace {

using Clock = std::chrono::steady_clock;

/// What is copied at once, in one turn of a reader.
constexpr std::uint64_t kBounce = std::uint64_t{4} << 20;
constexpr std::chrono::microseconds kPoll{50};
/// A device that has not copied so little in this time answers no more.
constexpr std::chrono::seconds kPatience{30};

}  // namespace

FilledSlabs::Legacy::~Legacy() {
  const CurrentContext current = CurrentContext::enter_to_clean(context);
  slabs.reset();
}

/// The way to the bytes on the device, for one thread at a time.
class DeviceMemory::Reader {
 public:
  static Result<std::unique_ptr<Reader>> open(const FilledSlabs& slabs);
  Reader(const FilledSlabs& slabs, CudaContext context) : slabs_(slabs), context_(std::move(context)) {}
  ~Reader();

  /// `out` is as long as `parts` are together, kBounce at most.
  Status copy(std::span<const SlabPart> parts, std::span<std::byte> out);

  /// The device does not end a copy into this reader's memory: it must stay for good.
  bool hung() const { return hung_; }

 private:
  Status prepare();
  Result<CUdeviceptr> address(std::size_t slab);
  Status wait();

  const FilledSlabs& slabs_;
  CudaContext context_;
  std::vector<std::optional<SlabMapping>> mappings_;
  std::optional<PinnedMemory> bounce_;
  CudaOwned<CUstream> stream_;
  CudaOwned<CUevent> event_;
  bool hung_ = false;
};

Result<std::unique_ptr<DeviceMemory::Reader>> DeviceMemory::Reader::open(const FilledSlabs& slabs) {
  auto context = CudaContext::retain(*slabs.driver, slabs.device);
  if (!context) return fail(context.error());
  auto reader = std::make_unique<Reader>(slabs, std::move(*context));
  if (auto s = reader->prepare(); !s) return fail(s.error());
  return reader;
}

Status DeviceMemory::Reader::prepare() {
  const CudaDriver& driver = context_.driver();
  auto current = CurrentContext::enter(context_);
  if (!current) return fail(current.error());
  auto bounce = PinnedMemory::create(driver, kBounce);
  if (!bounce) return fail(bounce.error());
  bounce_.emplace(std::move(*bounce));
  auto stream = make_stream(driver);
  if (!stream) return fail(stream.error());
  stream_ = std::move(*stream);
  auto event = make_event(driver);
  if (!event) return fail(event.error());
  event_ = std::move(*event);
  for (std::size_t i = 0; i < slabs_.descriptors.size(); ++i) mappings_.emplace_back();
  return current->leave();
}

DeviceMemory::Reader::~Reader() {
  const CurrentContext current = CurrentContext::enter_to_clean(context_);
  if (stream_ && !drain(context_.driver(), stream_.get())) bounce_->forget();
  event_.reset();
  stream_.reset();
  bounce_.reset();
  mappings_.clear();
}

/// Mapped on the first read, for reading alone where the device can.
Result<CUdeviceptr> DeviceMemory::Reader::address(std::size_t slab) {
  if (slabs_.legacy) return slabs_.legacy->slabs->address(slab);
  std::optional<SlabMapping>& mapping = mappings_[slab];
  if (mapping) return mapping->address();
  auto mapped = SlabMapping::import(context_.driver(), slabs_.device, slabs_.descriptors[slab].get(),
                                    slabs_.plan.slabs[slab], CU_MEM_ACCESS_FLAGS_PROT_READ);
  if (!mapped) return fail(mapped.error());
  mapping.emplace(std::move(*mapped));
  return mapping->address();
}

Status DeviceMemory::Reader::copy(std::span<const SlabPart> parts, std::span<std::byte> out) {
  const CudaDriver& driver = context_.driver();
  auto current = CurrentContext::enter(context_);
  if (!current) return fail(current.error());
  std::byte* to = bounce_->data();
  for (const SlabPart& part : parts) {
    const auto from = address(part.place.slab);
    if (!from) return fail(from.error());
    if (auto s =
            cuda_check(driver, "copying from " + slabs_.device.uuid,
                       driver.cuMemcpyDtoHAsync(to, *from + part.place.offset, part.nbytes, stream_.get()));
        !s)
      return s;
    to += part.nbytes;
  }
  if (auto s = wait(); !s) return s;
  std::memcpy(out.data(), bounce_->data(), out.size());
  return current->leave();
}

Status DeviceMemory::Reader::wait() {
  const CudaDriver& driver = context_.driver();
  const std::string what = "copying from " + slabs_.device.uuid;
  if (auto s = cuda_check(driver, what, driver.cuEventRecord(event_.get(), stream_.get())); !s) return s;
  const auto deadline = Clock::now() + kPatience;
  CUresult passed = driver.cuEventQuery(event_.get());
  for (; passed == CUDA_ERROR_NOT_READY && Clock::now() < deadline;
       passed = driver.cuEventQuery(event_.get()))
    std::this_thread::sleep_for(kPoll);
  if (passed != CUDA_ERROR_NOT_READY) return cuda_check(driver, what, passed);
  hung_ = true;
  return fail(Reason::timeout,
              slabs_.device.uuid + " has not copied for " + std::to_string(kPatience.count()) + " s",
              "see whether the device answers (nvidia-smi, dmesg)");
}

DeviceMemory::DeviceMemory(FilledSlabs slabs, std::string instance, std::chrono::milliseconds idle)
    : slabs_(std::move(slabs)),
      handles_(slabs_.legacy ? slabs_.legacy->slabs->handles() : std::vector<DeviceHandle>()),
      instance_(std::move(instance)),
      idle_(idle),
      dropper_([this](const std::stop_token& stop) { drop_when_idle(stop); }) {}

DeviceMemory::~DeviceMemory() = default;

Status DeviceMemory::read(std::size_t image, std::uint64_t offset, std::span<std::byte> out) {
  const bool there = image < slabs_.images.size() && slabs_.images[image].on_device;
  const std::uint64_t nbytes = there ? slabs_.images[image].nbytes : 0;
  if (offset > nbytes || out.size() > nbytes - offset)
    return fail(Reason::invalid, "bytes " + std::to_string(offset) + " to " +
                                     std::to_string(offset + out.size()) + " of image " +
                                     std::to_string(image) + " are not on the device");
  while (!out.empty()) {
    const auto some = out.first(std::min<std::size_t>(out.size(), kBounce));
    const auto parts =
        slab_parts(slabs_.images[image].segments, slabs_.plan.images[image], offset, some.size());
    if (auto s = read_some(parts, some); !s) return s;
    out = out.subspan(some.size());
    offset += some.size();
  }
  return {};
}

/// Whatever went wrong, the next read begins anew.
Status DeviceMemory::read_some(std::span<const SlabPart> parts, std::span<std::byte> out) {
  const std::lock_guard lock(mutex_);
  if (!reader_) {
    auto reader = Reader::open(slabs_);
    if (!reader) return fail(reader.error());
    reader_ = std::move(*reader);
    reading_ = true;
    changed_.notify_all();
  }
  last_read_ = Clock::now();
  const Status copied = reader_->copy(parts, out);
  if (!copied) {
    if (reader_->hung()) static_cast<void>(reader_.release());
    reader_.reset();
    reading_ = false;
  }
  return copied;
}

void DeviceMemory::drop_when_idle(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    if (!reader_) {
      changed_.wait(lock, stop, [this] { return reader_ != nullptr; });
    } else if (Clock::now() < last_read_ + idle_) {
      changed_.wait_until(lock, stop, last_read_ + idle_, [] { return false; });
    } else {
      reader_.reset();
      reading_ = false;
    }
  }
}

}  // namespace wcache

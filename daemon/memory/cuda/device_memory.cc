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
/// How long one that goes waits for a copy that has not ended in its time.
constexpr std::chrono::seconds kDrain{1};
/// How often one is looked at, when it could go.
constexpr std::chrono::milliseconds kLookAgain{100};

}  // namespace

void FilledSlabs::Legacy::forget() {
  if (slabs) slabs->forget();
  slabs.reset();
  context.forget();
}

FilledSlabs::Legacy::~Legacy() {
  if (!slabs) return;
  const CurrentContext current = CurrentContext::enter_to_clean(context);
  slabs.reset();
}

/// The way to the bytes on the device, for one thread at a time.
class DeviceMemory::Reader {
 public:
  static Result<std::unique_ptr<Reader>> open(const FilledSlabs& slabs);
  Reader(const FilledSlabs& slabs, CudaContext context) : slabs_(slabs), context_(std::move(context)) {}
  ~Reader();  ///< not while it hangs, unless it was forgotten

  /// `out` is as long as `parts` are together, kBounce at most.
  Status copy(std::span<const SlabPart> parts, std::span<std::byte> out, std::chrono::milliseconds patience,
              const std::stop_token& stop);

  /// Whether a copy that did not end in its time has not ended by `deadline` either: until then it may write
  /// to this reader's memory, which must stay as it is.
  bool hangs(Clock::time_point deadline);

  /// It hangs and must go: what the copy may use stays until the process ends.
  void forget();

 private:
  Status prepare();
  Result<CUdeviceptr> address(std::size_t slab);
  Status ask(std::span<const SlabPart> parts);

  const FilledSlabs& slabs_;
  CudaContext context_;
  std::vector<std::optional<SlabMapping>> mappings_;
  std::optional<PinnedMemory> bounce_;
  CudaOwned<CUstream> stream_;
  bool hangs_ = false;
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
  for (std::size_t i = 0; i < slabs_.descriptors.size(); ++i) mappings_.emplace_back();
  return current->leave();
}

DeviceMemory::Reader::~Reader() {
  const CurrentContext current = CurrentContext::enter_to_clean(context_);
  // A broken context answers with an error, at once: then its end is the end of its copies too.
  if (stream_ && drain(context_.driver(), stream_.get(), Clock::now() + kDrain) != CUDA_SUCCESS)
    bounce_->forget();
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

Status DeviceMemory::Reader::ask(std::span<const SlabPart> parts) {
  const CudaDriver& driver = context_.driver();
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
  return {};
}

Status DeviceMemory::Reader::copy(std::span<const SlabPart> parts, std::span<std::byte> out,
                                  std::chrono::milliseconds patience, const std::stop_token& stop) {
  const CudaDriver& driver = context_.driver();
  auto current = CurrentContext::enter(context_);
  if (!current) return fail(current.error());
  // What was asked for before something failed is under way all the same.
  const Status asked = ask(parts);
  const CUresult first = wait_for_stream(driver, stream_.get(), Clock::now() + patience, stop);
  CUresult passed = first;
  if (first != CUDA_SUCCESS && first != CUDA_ERROR_NOT_READY)
    passed = wait_for_stream(driver, stream_.get(), Clock::now() + patience, stop);
  hangs_ = passed == CUDA_ERROR_NOT_READY;
  if (!asked) return asked;
  if (hangs_ && stop.stop_requested()) return fail(Reason::timeout, "stopped in the midst of a copy");
  if (hangs_)
    return fail(Reason::timeout,
                slabs_.device.uuid + " has not copied " + std::to_string(out.size()) + " bytes for " +
                    std::to_string(std::chrono::duration_cast<std::chrono::seconds>(patience).count()) + " s",
                "see whether the device answers (nvidia-smi, dmesg)");
  if (auto s = cuda_check(driver, "copying from " + slabs_.device.uuid, first); !s) return s;
  std::memcpy(out.data(), bounce_->data(), out.size());
  return current->leave();
}

bool DeviceMemory::Reader::hangs(Clock::time_point deadline) {
  if (!hangs_) return false;
  const CurrentContext current = CurrentContext::enter_to_clean(context_);
  hangs_ = wait_for_stream(context_.driver(), stream_.get(), deadline) == CUDA_ERROR_NOT_READY;
  return hangs_;
}

void DeviceMemory::Reader::forget() {
  stream_.forget();
  bounce_->forget();
  for (std::optional<SlabMapping>& mapping : mappings_)
    if (mapping) mapping->forget();
  context_.forget();
}

DeviceMemory::DeviceMemory(FilledSlabs slabs, std::string instance, Times times)
    : slabs_(std::move(slabs)),
      handles_(slabs_.legacy ? slabs_.legacy->slabs->handles() : std::vector<DeviceHandle>()),
      instance_(std::move(instance)),
      times_(times),
      dropper_([this](const std::stop_token& stop) { drop_when_idle(stop); }) {}

DeviceMemory::~DeviceMemory() {
  dropper_ = {};
  if (!reader_ || !reader_->hangs(Clock::now() + kDrain)) return;
  reader_->forget();
  if (slabs_.legacy) slabs_.legacy->forget();
}

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

/// One turn. Whatever went wrong, the next one begins anew; but of a device that hangs nothing can be given
/// back, nor more be asked.
Status DeviceMemory::read_some(std::span<const SlabPart> parts, std::span<std::byte> out) {
  const std::lock_guard lock(mutex_);
  if (stopping_.stop_requested()) return fail(Reason::timeout, "nothing is read from the device any more");
  if (reader_ && reader_->hangs(Clock::now()))
    return fail(Reason::timeout, slabs_.device.uuid + " has not ended a copy that was asked of it before",
                "see whether the device answers (nvidia-smi, dmesg)");
  if (!reader_)
    if (auto s = open_reader(); !s) return s;
  last_read_ = Clock::now();
  const Status copied = reader_->copy(parts, out, times_.patience, stopping_.get_token());
  if (!copied && !reader_->hangs(Clock::now())) {
    reader_.reset();
    reading_ = false;
  }
  return copied;
}

Status DeviceMemory::open_reader() {
  auto reader = Reader::open(slabs_);
  if (!reader) return fail(reader.error());
  reader_ = std::move(*reader);
  reading_ = true;
  changed_.notify_all();
  return {};
}

void DeviceMemory::drop_when_idle(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    if (!reader_) {
      changed_.wait(lock, stop, [this] { return reader_ != nullptr; });
    } else if (Clock::now() < last_read_ + times_.idle) {
      changed_.wait_until(lock, stop, last_read_ + times_.idle, [] { return false; });
    } else if (reader_->hangs(Clock::now())) {
      changed_.wait_for(lock, stop, kLookAgain, [] { return false; });
    } else {
      reader_.reset();
      reading_ = false;
    }
  }
}

}  // namespace wcache

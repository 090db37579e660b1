#include "daemon/memory/cuda/device_sink.h"

#include <algorithm>
#include <deque>
#include <thread>
#include <utility>

#include "daemon/memory/cuda/pinned.h"
#include "daemon/memory/pages.h"

namespace wcache {
namespace {

using Clock = std::chrono::steady_clock;

/// Between two looks at an event: the driver can wait for one, but not until a deadline.
constexpr std::chrono::microseconds kPoll{100};
/// How long what is dropped waits for its copies, all together.
constexpr std::chrono::seconds kDrain{5};

Status wait_for_head(const CudaDriver& driver, CUstream stream, std::chrono::milliseconds stall_timeout,
                     const std::stop_token& stop) {
  const CUresult passed = wait_for_stream(driver, stream, Clock::now() + stall_timeout, stop);
  if (passed != CUDA_ERROR_NOT_READY) return cuda_check(driver, "copying a header to the device", passed);
  if (stop.stop_requested()) return fail(Reason::timeout, "the fill was stopped");
  return fail(Reason::timeout,
              "a header does not reach the device: nothing moved for " +
                  std::to_string(std::chrono::duration_cast<std::chrono::seconds>(stall_timeout).count()) +
                  " s",
              "see whether the device answers (nvidia-smi, dmesg)");
}

}  // namespace

class DeviceSink::Lane : public FillLane {
 public:
  Lane(DeviceSink& sink, const ReadPlan& reads, PinnedMemory memory, CudaOwned<CUstream> stream)
      : sink_(sink), reads_(reads), memory_(std::move(memory)), stream_(std::move(stream)) {}
  ~Lane() override;

  Status add_buffers(unsigned count);

  Result<std::byte*> take(const PlannedRead& read) override;
  Result<std::uint64_t> land(const PlannedRead& read, std::byte* bytes) override;
  bool pending() const override { return !copying_.empty(); }
  Result<std::uint64_t> settle(std::chrono::milliseconds wait) override;
  Status finish() override;
  void forsake(std::byte*) override { forsaken_ = true; }

 private:
  struct Buffer {
    std::byte* bytes = nullptr;
    CudaOwned<CUevent> event;
    std::uint64_t nbytes = 0;  // on their way from it
  };

  std::span<const Landing> landings(const PlannedRead& read) const {
    return std::span(reads_.landings).subspan(read.first_landing, read.landings);
  }
  Result<std::uint64_t> settle_passed();

  DeviceSink& sink_;
  const ReadPlan& reads_;
  PinnedMemory memory_;
  CudaOwned<CUstream> stream_;
  std::vector<Buffer> buffers_;
  std::vector<Buffer*> free_;
  std::deque<Buffer*> copying_;  // in the order of the stream
  bool forsaken_ = false;
};

Status DeviceSink::Lane::add_buffers(unsigned count) {
  buffers_.reserve(count);
  for (unsigned i = 0; i < count; ++i) {
    auto event = make_event(sink_.driver_);
    if (!event) return fail(event.error());
    buffers_.push_back({memory_.data() + i * kBounceNbytes, std::move(*event)});
    free_.push_back(&buffers_.back());
  }
  return {};
}

Result<std::byte*> DeviceSink::Lane::take(const PlannedRead&) {
  if (free_.empty()) return nullptr;
  std::byte* const bytes = free_.back()->bytes;
  free_.pop_back();
  return bytes;
}

/// The copies begin before the bytes are hashed, so that both go on at once.
Result<std::uint64_t> DeviceSink::Lane::land(const PlannedRead& read, std::byte* bytes) {
  auto current = CurrentContext::enter(sink_.context_);
  if (!current) return fail(current.error());
  Buffer& buffer = buffers_[static_cast<std::size_t>(bytes - memory_.data()) / kBounceNbytes];
  buffer.nbytes = 0;
  for (const Landing& landing : landings(read)) {
    if (auto s = sink_.copy(landing, bytes + landing.from, stream_.get()); !s) return fail(s.error());
    buffer.nbytes += landing.nbytes;
  }
  if (auto s = cuda_check(sink_.driver_, "marking the end of a copy",
                          sink_.driver_.cuEventRecord(buffer.event.get(), stream_.get()));
      !s)
    return fail(s.error());
  copying_.push_back(&buffer);
  for (const Landing& landing : landings(read)) sink_.hash(landing, bytes + landing.from);
  if (auto s = current->leave(); !s) return fail(s.error());
  return 0;
}

Result<std::uint64_t> DeviceSink::Lane::settle(std::chrono::milliseconds wait) {
  auto current = CurrentContext::enter(sink_.context_);
  if (!current) return fail(current.error());
  const auto deadline = Clock::now() + wait;
  auto placed = settle_passed();
  while (placed && *placed == 0 && !copying_.empty() && Clock::now() < deadline) {
    std::this_thread::sleep_for(kPoll);
    placed = settle_passed();
  }
  if (!placed) return placed;
  if (auto s = current->leave(); !s) return fail(s.error());
  return placed;
}

Result<std::uint64_t> DeviceSink::Lane::settle_passed() {
  std::uint64_t placed = 0;
  while (!copying_.empty()) {
    Buffer& buffer = *copying_.front();
    const CUresult result = sink_.driver_.cuEventQuery(buffer.event.get());
    if (result == CUDA_ERROR_NOT_READY) break;
    if (auto s = cuda_check(sink_.driver_, "copying to the device", result); !s) return fail(s.error());
    copying_.pop_front();
    free_.push_back(&buffer);
    placed += buffer.nbytes;
  }
  return placed;
}

Status DeviceSink::Lane::finish() {
  const CudaDriver& driver = sink_.driver_;
  auto current = CurrentContext::enter(sink_.context_);
  if (!current) return fail(current.error());
  if (auto s = cuda_check(driver, "copying to the device",
                          wait_for_stream(driver, stream_.get(), Clock::now() + kDrain));
      !s)
    return s;
  for (Buffer& buffer : buffers_)
    if (auto s = cuda_check(driver, "letting go of an event", buffer.event.close()); !s) return s;
  if (auto s = memory_.close(); !s) return s;
  if (auto s = cuda_check(driver, "letting go of a stream", stream_.close()); !s) return s;
  return current->leave();
}

/// After a failure copies may be under way, of which some have no event behind them.
DeviceSink::Lane::~Lane() {
  if (!stream_) return;  // finished
  const CurrentContext current = CurrentContext::enter_to_clean(sink_.context_);
  const auto deadline = Clock::now() + (sink_.hung_ ? Clock::duration(0) : kDrain);
  if (drain(sink_.driver_, stream_.get(), deadline) == CUDA_SUCCESS) {
    buffers_.clear();
    stream_.reset();
    forsaken_ ? memory_.keep_pages() : memory_.reset();
  } else {
    sink_.hung_ = true;
    for (Buffer& buffer : buffers_) buffer.event.forget();
    stream_.forget();
    memory_.forget();
  }
}

DeviceSink::DeviceSink(const EntryPlan& plan, DevicePlaces places, const CudaContext& context,
                       unsigned buffers)
    : plan_(plan),
      places_(std::move(places)),
      context_(context),
      driver_(context.driver()),
      buffers_(buffers),
      hashes_(plan.images.begin(), plan.images.end()) {}

Result<ReadPlan> DeviceSink::plan_reads(std::span<const std::uint64_t> alignments) const {
  return plan_staged_reads(plan_, alignments);
}

Status DeviceSink::copy(const Landing& landing, const std::byte* bytes, CUstream stream) const {
  for (const SlabPart& part : slab_parts(plan_.images[landing.image].segments, places_.images[landing.image],
                                         landing.image_offset, landing.nbytes)) {
    const CUdeviceptr to = places_.slabs[part.place.slab] + part.place.offset;
    const std::byte* const from = bytes + (part.image_offset - landing.image_offset);
    if (auto s = cuda_check(driver_, "copying " + plan_.images[landing.image].name + " to the device",
                            driver_.cuMemcpyHtoDAsync(to, from, part.nbytes, stream));
        !s)
      return s;
  }
  return {};
}

void DeviceSink::hash(const Landing& landing, const std::byte* bytes) {
  hashes_[landing.image].add_run(landing.image_offset, {bytes, landing.nbytes});
}

Result<std::uint64_t> DeviceSink::place_heads(std::chrono::milliseconds stall_timeout,
                                              const std::stop_token& stop) {
  std::uint64_t placed = 0;
  for (std::uint32_t i = 0; i < plan_.images.size(); ++i) {
    const auto head = std::as_bytes(std::span(plan_.images[i].head));
    if (head.empty()) continue;
    if (auto s = place_head(i, head, stall_timeout, stop); !s) return fail(s.error());
    placed += head.size();
  }
  return placed;
}

Status DeviceSink::place_head(std::uint32_t image, std::span<const std::byte> head,
                              std::chrono::milliseconds stall_timeout, const std::stop_token& stop) {
  const Landing landing{.image = image, .image_offset = 0, .nbytes = head.size(), .from = 0};
  hash(landing, head.data());
  auto current = CurrentContext::enter(context_);
  if (!current) return fail(current.error());
  auto memory = PinnedMemory::create(driver_, whole_pages(head.size()));
  if (!memory) return fail(memory.error());
  std::ranges::copy(head, memory->data());
  auto stream = make_stream(driver_);
  if (!stream) return fail(stream.error());
  Status copied = copy(landing, memory->data(), stream->get());
  if (copied) copied = wait_for_head(driver_, stream->get(), stall_timeout, stop);
  if (!copied) {
    hung_ = drain(driver_, stream->get(), Clock::now() + kDrain) != CUDA_SUCCESS;
    if (hung_) {
      memory->forget();
      stream->forget();
    }
    return copied;
  }
  if (auto s = cuda_check(driver_, "letting go of a stream", stream->close()); !s) return s;
  if (auto s = memory->close(); !s) return s;
  return current->leave();
}

Result<std::unique_ptr<FillLane>> DeviceSink::make_lane(const ReadPlan& reads, unsigned depth) {
  const unsigned count = buffers_ > 0 ? buffers_ : depth + kSpareBuffers;
  auto current = CurrentContext::enter(context_);
  if (!current) return fail(current.error());
  auto memory = PinnedMemory::create(driver_, count * kBounceNbytes);
  if (!memory) return fail(memory.error());
  auto stream = make_stream(driver_);
  if (!stream) return fail(stream.error());
  auto lane = std::make_unique<Lane>(*this, reads, std::move(*memory), std::move(*stream));
  if (auto s = lane->add_buffers(count); !s) return fail(s.error());
  if (auto s = current->leave(); !s) return fail(s.error());
  return lane;
}

std::vector<ImageDigests> DeviceSink::digests() const {
  std::vector<ImageDigests> out;
  for (const ImageHash& hash : hashes_) out.push_back(hash.finish());
  return out;
}

}  // namespace wcache

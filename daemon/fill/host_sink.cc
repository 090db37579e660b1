#include "daemon/fill/host_sink.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

namespace wcache {
namespace {

constexpr std::size_t kMostBuffers = 8;

struct FreeAligned {
  void operator()(std::byte* bytes) const { std::free(bytes); }
};
using Buffer = std::unique_ptr<std::byte[], FreeAligned>;

}  // namespace

class HostSink::Lane : public FillLane {
 public:
  Lane(HostSink& sink, const ReadPlan& reads, unsigned depth)
      : sink_(sink), reads_(reads), most_(std::min<std::size_t>(kMostBuffers, depth)) {}

  Result<std::byte*> take(const PlannedRead& read) override {
    const Landing& landing = reads_.landings[read.first_landing];
    if (read.direct) return sink_.images_[landing.image].data() + landing.image_offset;
    if (spare_.empty() && buffers_.size() == most_) return nullptr;
    if (spare_.empty()) {
      Buffer buffer(static_cast<std::byte*>(std::aligned_alloc(kMaxAlignment, kBounceNbytes)));
      if (!buffer) throw std::bad_alloc();
      spare_.push_back(buffer.get());
      buffers_.push_back(std::move(buffer));
    }
    std::byte* const bytes = spare_.back();
    spare_.pop_back();
    return bytes;
  }

  Result<std::uint64_t> land(const PlannedRead& read, std::byte* bytes) override {
    // A direct read at the end of an image fills its last page.
    if (read.direct) std::memset(bytes + read.needed, 0, read.nbytes - read.needed);
    std::uint64_t nbytes = 0;
    for (const Landing& landing : std::span(reads_.landings).subspan(read.first_landing, read.landings)) {
      if (!read.direct)
        std::memcpy(sink_.images_[landing.image].data() + landing.image_offset, bytes + landing.from,
                    landing.nbytes);
      sink_.hasher_.arrived(landing.image, landing.image_offset, landing.nbytes);
      nbytes += landing.nbytes;
    }
    if (!read.direct) spare_.push_back(bytes);
    return nbytes;
  }

  bool pending() const override { return false; }
  Result<std::uint64_t> settle(std::chrono::milliseconds) override { return 0; }
  Status finish() override { return {}; }

  void forsake(std::byte* bytes) override {
    for (Buffer& buffer : buffers_)
      if (buffer.get() == bytes) static_cast<void>(buffer.release());
  }

 private:
  HostSink& sink_;
  const ReadPlan& reads_;
  std::size_t most_;
  std::vector<Buffer> buffers_;
  std::vector<std::byte*> spare_;
};

Result<std::unique_ptr<HostSink>> HostSink::create(const EntryPlan& plan,
                                                   std::span<const std::span<std::byte>> images) {
  auto hasher = BlockHasher::create(plan, images);
  if (!hasher) return fail(hasher.error());
  return std::unique_ptr<HostSink>(new HostSink(plan, images, std::move(*hasher)));
}

Result<ReadPlan> HostSink::plan_reads(std::span<const std::uint64_t> alignments) const {
  return wcache::plan_reads(plan_, alignments);
}

Result<std::uint64_t> HostSink::place_heads(std::chrono::milliseconds, const std::stop_token&) {
  std::uint64_t placed = 0;
  for (std::size_t i = 0; i < plan_.images.size(); ++i) {
    const std::string& head = plan_.images[i].head;
    for (std::uint64_t at = 0; at < head.size(); at += kChunk) {
      const std::uint64_t nbytes = std::min<std::uint64_t>(kChunk, head.size() - at);
      std::memcpy(images_[i].data() + at, head.data() + at, nbytes);
      hasher_.arrived(i, at, nbytes);
      placed += nbytes;
    }
  }
  return placed;
}

Result<std::unique_ptr<FillLane>> HostSink::make_lane(const ReadPlan& reads, unsigned depth) {
  return std::make_unique<Lane>(*this, reads, depth);
}

}  // namespace wcache

#include "core/fingerprint.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "core/image_hash.h"
#include "core/image_reader.h"
#include "core/source_state.h"

namespace wcache {
namespace {

// What one read takes: at least one block, several small ones.
constexpr std::uint64_t kUnit = std::uint64_t{8} << 20;
constexpr std::int64_t kSettledNs = 2'000'000'000;
constexpr std::chrono::milliseconds kProgressEvery{100};

/// Some consecutive blocks of one image.
struct Unit {
  std::size_t image = 0;
  std::size_t first = 0;
  std::size_t count = 0;
  Segment where;
};

void append_units(std::vector<Unit>& units, std::size_t image, const ImageHash& hash) {
  Unit unit{image, 0, 0, {}};
  for (std::size_t i = 0; i < hash.block_count(); ++i) {
    const Segment block = hash.block(i);
    if (unit.count > 0 && unit.where.nbytes + block.nbytes > kUnit) {
      units.push_back(unit);
      unit = {image, i, 0, {block.offset, 0}};
    }
    ++unit.count;
    unit.where.nbytes += block.nbytes;
  }
  if (unit.count > 0) units.push_back(unit);
}

/// Reads and hashes images with a few threads. The first error ends all of them.
class Hashing {
 public:
  Hashing(const EntryPlan& plan, std::span<const std::size_t> images, const ResolveOptions& options)
      : plan_(plan), options_(options), hashes_(plan.images.size()) {
    for (std::size_t image : images) {
      hashes_[image] = std::make_unique<ImageHash>(plan.images[image]);
      append_units(units_, image, *hashes_[image]);
      total_ += plan.images[image].nbytes;
    }
  }

  Status run() {
    {
      std::vector<std::jthread> threads;
      const auto count = std::min<std::size_t>(std::max(1u, options_.threads), units_.size());
      working_ = count;
      for (std::size_t i = 0; i < count; ++i) threads.emplace_back([this] { work(); });
      wait();
    }
    if (error_) return fail(*error_);
    if (options_.progress) options_.progress(done_, total_);
    return {};
  }

  Digest file_digest(std::size_t image) const { return hashes_[image]->finish().file; }

 private:
  void work() {
    ImageReader reader(plan_);
    std::vector<std::byte> buffer;
    for (std::size_t at = next_++; at < units_.size() && !ended_; at = next_++)
      if (Status done = hash(units_[at], reader, buffer); !done) end_with(std::move(done.error()));
    const std::lock_guard lock(mutex_);
    --working_;
    changed_.notify_all();
  }

  Status hash(const Unit& unit, ImageReader& reader, std::vector<std::byte>& buffer) {
    buffer.resize(unit.where.nbytes);
    if (Status done = reader.read(plan_.images[unit.image], unit.where.offset, buffer); !done) return done;
    ImageHash& into = *hashes_[unit.image];
    std::uint64_t at = 0;
    for (std::size_t i = 0; i < unit.count; ++i) {
      const std::uint64_t nbytes = into.block(unit.first + i).nbytes;
      into.add(unit.first + i, std::span(buffer).subspan(at, nbytes));
      at += nbytes;
    }
    done_ += unit.where.nbytes;
    return {};
  }

  void end_with(Error error) {
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = std::move(error);
    ended_ = true;
  }

  void wait() {
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, kProgressEvery, [this] { return working_ == 0; })) {
      lock.unlock();
      if (options_.progress) options_.progress(done_, total_);
      if (options_.stop.stop_requested())
        end_with({Reason::io,
                  "stopped after " + std::to_string(done_) + " of " + std::to_string(total_) + " bytes",
                  {},
                  {},
                  ECANCELED});
      lock.lock();
    }
  }

  const EntryPlan& plan_;
  const ResolveOptions& options_;
  std::vector<std::unique_ptr<ImageHash>> hashes_;  ///< of the images that are read
  std::vector<Unit> units_;
  std::uint64_t total_ = 0;
  std::atomic<std::size_t> next_ = 0;
  std::atomic<std::uint64_t> done_ = 0;
  std::atomic<bool> ended_ = false;
  std::mutex mutex_;  ///< guards what follows
  std::condition_variable changed_;
  std::size_t working_ = 0;
  std::optional<Error> error_;
};

bool changed(const SourceState& state) {
  return state.changed.has_value();
}

/// Of each image its digest, where it is remembered.
std::vector<std::optional<Digest>> look_up(const EntryPlan& plan, const std::vector<SourceState>& states,
                                           DigestCache& cache) {
  const auto all = [&](const ImagePlan& image) {
    return std::all_of(image.pieces.begin(), image.pieces.end(),
                       [&](const Piece& piece) { return states[piece.source].can_be_remembered(); });
  };
  std::vector<std::optional<Digest>> digests;
  digests.reserve(plan.images.size());
  for (const ImagePlan& image : plan.images)
    digests.push_back(all(image) ? cache.find(subject_of(plan, image), image.nbytes) : std::nullopt);
  return digests;
}

/// What remember_digests may write down of the images in `which`.
void remember(const EntryPlan& plan, std::span<const std::size_t> which, const std::vector<Digest>& digests,
              DigestCache& cache, std::int64_t began_ns) {
  const std::vector<SourceState> states = states_of(plan);
  const auto settled = [&](const Piece& piece) {
    const FileIdentity& identity = plan.sources[piece.source].identity;
    return states[piece.source].can_be_remembered() &&
           std::max(identity.mtime_ns, identity.ctime_ns) < began_ns - kSettledNs;
  };
  std::vector<DigestCache::Row> rows;
  for (std::size_t i = 0; i < which.size(); ++i) {
    const ImagePlan& image = plan.images[which[i]];
    if (std::all_of(image.pieces.begin(), image.pieces.end(), settled))
      rows.push_back({subject_of(plan, image), digests[i], image.nbytes, plan.source + "/" + image.name});
  }
  cache.remember(rows);
}

Key key_with(const EntryPlan& plan, const std::vector<std::optional<Digest>>& digests) {
  std::vector<ImageDigests> images;
  images.reserve(digests.size());
  for (const std::optional<Digest>& digest : digests) images.push_back({*digest, {}});
  return key_of(plan, images);
}

}  // namespace

std::string_view to_string(How how) {
  return how == How::read ? "read" : "remembered";
}

std::int64_t system_now_ns() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

Result<ResolvedKey> resolve_key(const EntryPlan& plan, DigestCache& cache, const ResolveOptions& options) {
  const std::int64_t began_ns = options.now ? options.now() : system_now_ns();
  const std::vector<SourceState> states = states_of(plan);
  if (const auto at = std::find_if(states.begin(), states.end(), changed); at != states.end())
    return fail(*at->changed);
  std::vector<std::optional<Digest>> digests = look_up(plan, states, cache);
  ResolvedKey resolved;
  std::vector<std::size_t> missing;
  for (std::size_t i = 0; i < digests.size(); ++i) {
    resolved.how.push_back(digests[i] ? How::remembered : How::read);
    if (!digests[i]) missing.push_back(i);
  }
  if (!missing.empty()) {
    Hashing hashing(plan, missing, options);
    if (Status done = hashing.run(); !done) return fail(done.error());
    std::vector<Digest> read;
    read.reserve(missing.size());
    for (std::size_t i : missing) digests[i] = read.emplace_back(hashing.file_digest(i));
    remember(plan, missing, read, cache, began_ns);
  }
  resolved.key = key_with(plan, digests);
  return resolved;
}

std::optional<Key> remembered_key(const EntryPlan& plan, DigestCache& cache) {
  const std::vector<SourceState> states = states_of(plan);
  if (std::any_of(states.begin(), states.end(), changed)) return std::nullopt;
  const std::vector<std::optional<Digest>> digests = look_up(plan, states, cache);
  if (!std::all_of(digests.begin(), digests.end(), [](const auto& digest) { return digest.has_value(); }))
    return std::nullopt;
  return key_with(plan, digests);
}

void remember_digests(const EntryPlan& plan, std::span<const ImageDigests> digests, DigestCache& cache,
                      std::int64_t began_ns) {
  std::vector<std::size_t> which;
  std::vector<Digest> files;
  for (std::size_t i = 0; i < digests.size(); ++i) {
    which.push_back(i);
    files.push_back(digests[i].file);
  }
  remember(plan, which, files, cache, began_ns);
}

}  // namespace wcache

#include "daemon/fill/sink.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "core/image_hash.h"
#include "daemon/fill/fill.h"
#include "tests/unit/daemon/fill/fake_disk.h"
#include "tests/unit/daemon/fill/random_draft.h"

namespace wcache {
namespace {

using namespace std::chrono_literals;
using testing::FakeDisk;
using ::testing::HasSubstr;

/// Memory that what was read reaches late, when it is waited for: a device without one.
class LateSink : public FillSink {
 public:
  struct Settings {
    std::size_t buffers = 1;     ///< of each lane
    bool never = false;          ///< nothing pending ever passes
    std::optional<Error> fails;  ///< what settling comes back with
  };

  LateSink(const EntryPlan& plan, Settings wanted) : settings(std::move(wanted)), plan_(plan) {
    for (const ImagePlan& image : plan.images) {
      images.emplace_back(image.nbytes);
      hashes_.emplace_back(image);
    }
  }

  const EntryPlan& plan() const override { return plan_; }
  Result<ReadPlan> plan_reads(std::span<const std::uint64_t> alignments) const override {
    return plan_staged_reads(plan_, alignments);
  }
  Result<std::uint64_t> place_heads(std::chrono::milliseconds, const std::stop_token&) override {
    std::uint64_t placed = 0;
    for (std::uint32_t i = 0; i < plan_.images.size(); ++i) {
      const std::span head = std::as_bytes(std::span(plan_.images[i].head));
      place({i, 0, head.size(), 0}, head.data());
      placed += head.size();
    }
    return placed;
  }
  Result<std::unique_ptr<FillLane>> make_lane(const ReadPlan& reads, unsigned) override {
    return std::make_unique<Lane>(*this, reads);
  }
  std::vector<ImageDigests> digests() const override {
    std::vector<ImageDigests> out;
    for (const ImageHash& hash : hashes_) out.push_back(hash.finish());
    return out;
  }

  Settings settings;
  std::vector<std::vector<std::byte>> images;
  std::atomic<int> lanes = 0;  // now
  std::atomic<int> made = 0;
  std::atomic<int> finished = 0;

 private:
  class Lane : public FillLane {
   public:
    Lane(LateSink& sink, const ReadPlan& reads) : sink_(sink), reads_(reads), bytes_(sink.settings.buffers) {
      ++sink_.lanes;
      ++sink_.made;
      for (auto& bytes : bytes_) {
        bytes.resize(kBounceNbytes + kMaxAlignment);
        void* at = bytes.data();
        std::size_t space = bytes.size();
        free_.push_back(static_cast<std::byte*>(std::align(kMaxAlignment, kBounceNbytes, at, space)));
      }
    }
    ~Lane() override { --sink_.lanes; }

    Result<std::byte*> take(const PlannedRead&) override {
      if (free_.empty()) return nullptr;
      std::byte* const bytes = free_.front();
      free_.pop_front();
      return bytes;
    }
    Result<std::uint64_t> land(const PlannedRead& read, std::byte* bytes) override {
      pending_.push_back({&read, bytes});
      return 0;
    }
    bool pending() const override { return !pending_.empty(); }
    Result<std::uint64_t> settle(std::chrono::milliseconds wait) override {
      if (sink_.settings.fails) return fail(*sink_.settings.fails);
      if (wait == 0ms || sink_.settings.never) {
        std::this_thread::sleep_for(std::min(wait, 5ms));
        return 0;
      }
      const auto [read, bytes] = pending_.front();
      pending_.pop_front();
      std::uint64_t placed = 0;
      for (const Landing& landing : std::span(reads_.landings).subspan(read->first_landing, read->landings)) {
        sink_.place(landing, bytes + landing.from);
        placed += landing.nbytes;
      }
      std::memset(bytes, 0xdd, kBounceNbytes);
      free_.push_back(bytes);
      return placed;
    }
    Status finish() override {
      ++sink_.finished;
      return {};
    }
    void forsake(std::byte*) override {}

   private:
    LateSink& sink_;
    const ReadPlan& reads_;
    std::vector<std::vector<std::byte>> bytes_;
    std::deque<std::byte*> free_;
    std::deque<std::pair<const PlannedRead*, std::byte*>> pending_;
  };

  void place(const Landing& landing, const std::byte* bytes) {
    if (landing.nbytes == 0) return;
    std::memcpy(images[landing.image].data() + landing.image_offset, bytes, landing.nbytes);
    hashes_[landing.image].add_run(landing.image_offset, {bytes, landing.nbytes});
  }

  const EntryPlan& plan_;
  std::vector<ImageHash> hashes_;
};

TEST(Sink, WhatPassesLateIsWaitedForThoughNoReadIsInFlight) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    FakeDisk disk;
    disk.seed = seed;
    const EntryPlan plan = testing::RandomDraft(seed).make(disk);
    LateSink sink(plan, {.buffers = 1 + seed % 3, .never = false, .fails = {}});
    FillOptions options;
    options.workers = 1 + static_cast<unsigned>(seed % 4);
    options.depth = 8;
    std::uint64_t last = 0;
    const auto report = fill(sink, disk, options, [&](const FillProgress& now) { last = now.filled; });
    ASSERT_TRUE(report) << report.error().message;
    EXPECT_EQ(last, plan.nbytes());
    EXPECT_EQ(sink.lanes, 0);
    EXPECT_EQ(sink.finished, sink.made);
    for (std::size_t i = 0; i < plan.images.size(); ++i) {
      const std::vector<std::byte> expected = testing::expected_image(plan, disk, i);
      EXPECT_EQ(sink.images[i], expected);
      EXPECT_EQ(report->digests[i].file, file_digest(expected, plan.images[i].segments));
    }
  }
}

class SinkTrouble : public ::testing::Test {
 protected:
  SinkTrouble() { plan_ = testing::RandomDraft(3).make(disk_); }

  Error failure(LateSink::Settings settings, std::chrono::milliseconds patience = 30s,
                std::stop_token stop = {}) {
    LateSink sink(plan_, std::move(settings));
    FillOptions options;
    options.stall_timeout = patience;
    const auto report = fill(sink, disk_, options, {}, std::move(stop));
    EXPECT_EQ(sink.lanes, 0);
    EXPECT_GT(sink.made, sink.finished);
    EXPECT_EQ(disk_.in_flight, 0);
    return report ? Error{Reason::internal, "the fill went well"} : report.error();
  }

  FakeDisk disk_;
  EntryPlan plan_;
};

TEST_F(SinkTrouble, WhatNeverPassesIsAStall) {
  const Error error = failure({.buffers = 2, .never = true, .fails = {}}, 200ms);
  EXPECT_EQ(error.reason, Reason::timeout);
  EXPECT_THAT(error.message, HasSubstr("does not reach the device"));
}

TEST_F(SinkTrouble, ItsErrorEndsTheFill) {
  const Error error =
      failure({.buffers = 2, .never = false, .fails = Error{Reason::io, "the device fell off"}});
  EXPECT_EQ(error.reason, Reason::io);
  EXPECT_EQ(error.message, "the device fell off");
}

TEST_F(SinkTrouble, AStopIsNoticedWhileEverythingIsPending) {
  std::stop_source stop;
  const std::jthread stopper([&] {
    std::this_thread::sleep_for(50ms);
    stop.request_stop();
  });
  EXPECT_EQ(failure({.buffers = 1, .never = true, .fails = {}}, 30s, stop.get_token()).message,
            "the fill was stopped");
}

}  // namespace
}  // namespace wcache

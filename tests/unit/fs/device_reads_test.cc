#include "fs/device_reads.h"

#include <gtest/gtest.h>

#include <future>
#include <memory>

#include "tests/unit/fs/reading_daemon.h"

namespace wcache {
namespace {

using namespace test;
using namespace std::chrono_literals;
using Mode = ReadingDaemon::Mode;
using Bytes = Result<std::string>;

constexpr std::uint32_t kWeights = 0;  // row of the manifest

class ReadsOfADevice : public testing::Test {
 protected:
  std::future<Bytes> ask(DeviceReads& reads, std::uint64_t offset, std::size_t nbytes) {
    auto promise = std::make_shared<std::promise<Bytes>>();
    reads.read(kWeights, offset, nbytes, [promise](const Result<std::span<const std::byte>>& bytes) {
      if (bytes)
        promise->set_value(std::string(reinterpret_cast<const char*>(bytes->data()), bytes->size()));
      else
        promise->set_value(fail(bytes.error()));
    });
    return promise->get_future();
  }
  Bytes read(std::uint64_t offset, std::size_t nbytes) { return ask(*reads_, offset, nbytes).get(); }
  const std::string& whole() const { return daemon_.entry().bytes[kWeights]; }

  ReadingDaemon daemon_{device_entry({test_weights("m.safetensors", {"a", "b"}, 5'000'003)})};
  std::optional<DeviceReads> reads_{std::in_place, daemon_.socket(), quiet_log()};
};

TEST_F(ReadsOfADevice, AreTheFileByteForByte) {
  for (const auto& [offset, nbytes] : {std::pair<std::size_t, std::size_t>{0, 1},
                                       {0, kMaxCopyNbytes},
                                       {0, kMaxCopyNbytes + 1},
                                       {0, whole().size()},
                                       {whole().size() - 1, 1},
                                       {5'000'000, 4096},
                                       {77, 2 * kMaxCopyNbytes}}) {
    const Bytes got = read(offset, nbytes);
    ASSERT_TRUE(got) << got.error().message;
    EXPECT_TRUE(*got == whole().substr(offset, nbytes)) << offset << " " << nbytes;
  }
}

TEST_F(ReadsOfADevice, FourAtOnceOverConnectionsThatAreKept) {
  daemon_.set(Mode::hold);
  std::vector<std::future<Bytes>> waiting;
  for (std::size_t i = 0; i < 10; ++i) waiting.push_back(ask(*reads_, i * 1000, 1000));
  EXPECT_TRUE(daemon_.wait_asked(4));
  daemon_.set(Mode::serve);
  for (std::size_t i = 0; i < 10; ++i) {
    const Bytes got = waiting[i].get();
    ASSERT_TRUE(got) << got.error().message;
    EXPECT_TRUE(*got == whole().substr(i * 1000, 1000));
  }
  EXPECT_EQ(daemon_.connections(), 4u);
}

TEST_F(ReadsOfADevice, AnErrorIsThatReadsAlone) {
  const auto reason = [&] {
    const Bytes got = read(0, 100);
    return got ? Reason::internal : got.error().reason;
  };
  for (const auto& [mode, expected] :
       {std::pair{Mode::hang_up, Reason::not_running}, std::pair{Mode::garbage, Reason::corrupt},
        std::pair{Mode::stray, Reason::corrupt}, std::pair{Mode::little, Reason::corrupt},
        std::pair{Mode::refuse, Reason::io}}) {
    daemon_.set(mode);
    EXPECT_EQ(reason(), expected) << static_cast<int>(mode);
    daemon_.set(Mode::serve);
    const Bytes next = read(5, 100);
    ASSERT_TRUE(next) << next.error().message;
    EXPECT_TRUE(*next == whole().substr(5, 100));
  }
}

TEST_F(ReadsOfADevice, ASilentDaemonIsATimeout) {
  for (const Mode mode : {Mode::hold, Mode::silent}) {
    daemon_.set(mode);
    DeviceReads impatient(daemon_.socket(), quiet_log(), 50ms);
    std::vector<std::future<Bytes>> waiting;
    for (int i = 0; i < 9; ++i) waiting.push_back(ask(impatient, 0, 10));
    for (std::future<Bytes>& each : waiting) EXPECT_EQ(each.get().error().reason, Reason::timeout);
    daemon_.set(Mode::serve);
  }
}

TEST_F(ReadsOfADevice, WhatWaitsIsAnsweredWhenTheDaemonIsLost) {
  daemon_.set(Mode::hold);
  std::vector<std::future<Bytes>> waiting;
  for (int i = 0; i < 9; ++i) waiting.push_back(ask(*reads_, 0, 10));
  EXPECT_TRUE(daemon_.wait_asked(4));
  EXPECT_FALSE(reads_->stopped());
  reads_->stop();
  for (std::future<Bytes>& each : waiting) EXPECT_EQ(each.get().error().reason, Reason::not_running);
  EXPECT_TRUE(reads_->stopped());
  EXPECT_EQ(read(0, 10).error().reason, Reason::not_running);
}

TEST_F(ReadsOfADevice, TheEndWaitsForItsAnswers) {
  daemon_.set(Mode::hold);
  std::vector<std::future<Bytes>> waiting;
  for (int i = 0; i < 9; ++i) waiting.push_back(ask(*reads_, 0, 10));
  reads_.reset();
  for (std::future<Bytes>& each : waiting) EXPECT_EQ(each.wait_for(0s), std::future_status::ready);
}

TEST_F(ReadsOfADevice, NobodyListensAnyMore) {
  ASSERT_TRUE(read(0, 10));
  daemon_.end();
  EXPECT_EQ(read(0, 10).error().reason, Reason::not_running);
  EXPECT_EQ(read(0, 10).error().reason, Reason::not_running);
}

}  // namespace
}  // namespace wcache

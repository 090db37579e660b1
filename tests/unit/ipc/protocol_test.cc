#include "ipc/protocol.h"

#include <flatbuffers/flatbuffers.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "ipc/message.h"

namespace wcache {
namespace {

RankStatus full_rank() {
  RankStatus rank;
  rank.role = "draft0";
  rank.name = "M";
  rank.fingerprint = std::string(32, 'a');
  rank.layout = "mtp";
  rank.source = "/models/M";
  rank.state = State::failed;
  rank.reason = "corrupt";
  rank.message = "model.safetensors: no";
  rank.hint = "get another";
  rank.nbytes = 1ULL << 40;
  rank.tensors = 7;
  rank.tp_size = 8;
  rank.rank = 3;
  rank.pid = 12;
  rank.device_uuid = "HOST-3";
  rank.tier = "host";
  rank.pages = "huge";
  rank.socket = "/run/wcache/x.sock";
  rank.filled = 5;
  rank.rate = 2.5e9;
  rank.fill_path = "threads";
  rank.survives = true;
  rank.holders = {{1, "init", 2.5}, {2, "vllm serve", 0}};
  rank.since = 1.7e9;
  rank.holders_complete = true;
  rank.node_ranks = 4;
  rank.ipc_kind = "cuda-vmm";
  rank.context = true;
  rank.device_nbytes = 3ULL << 40;
  return rank;
}

DeviceHandle numbered_handle(int first) {
  DeviceHandle handle;
  for (std::byte& byte : handle) byte = static_cast<std::byte>(first++);
  return handle;
}

std::vector<Envelope> one_of_each() {
  Hello hello;
  hello.purpose = Purpose::mount;
  hello.command = "wcachefs";
  hello.max_version = 9;
  return {
      {1, hello},
      {2, HelloReply{1, 99}},
      {3, ErrorReply{Error{Reason::over_budget, "too big", "buy more", "memory-limit", 0}}},
      {4, StatusRequest{}},
      {5, StatusReply{7,
                      {full_rank(), RankStatus{}},
                      {"/mnt", 3, true, "why", {"target/a", "draft0/b"}, {{"a", "b"}}},
                      true}},
      {6, AttachRequest{"target", std::string(32, 'a'), 3}},
      {7, AttachReply{500, 4096, 8, {numbered_handle(1), numbered_handle(2)}, std::string(32, 'c')}},
      {8, Descriptors{250, 250}},
      {9, VerifyRequest{}},
      {10, VerifyProgress{1, 2}},
      {11, VerifyReply{false, "f", "t", "e", "o"}},
      {12, EvictRequest{"target", "00112233445566778899aabbccddeeff"}},
      {13, EvictReply{}},
      {14, HoldersRequest{}},
      {15, HoldersReply{{{4, "python", 1.0}}}},
      {16, WithdrawRequest{true}},
      {17, WithdrawReply{true, {{5, "cat", 3.0}}}},
      {0, full_rank()},
      {18, GroupFiles{{{"model-rank-1-part-0.safetensors", 1ULL << 40, Digest{1, 2}}, {"é", 0, {}}}, true}},
      {19, Sealed{}},
      {20, Publish{}},
      {21, PairRequest{std::string(32, 'a'), std::string(32, 'b')}},
      {22, PairReply{}},
      {23, SlabRequest{7, "draft0", std::string(32, 'b'), 2}},
      {24, SlabReply{1ULL << 40}},
      {25, CopyRequest{3, 1ULL << 40, kMaxCopyNbytes}},
      {26, CopyReply{kMaxCopyNbytes}},
  };
}

TEST(Protocol, EveryMessageComesBackAsItWas) {
  const std::vector<Envelope> all = one_of_each();
  ASSERT_EQ(all.size(), std::variant_size_v<Body>);
  for (std::size_t i = 0; i < all.size(); ++i) {
    ASSERT_EQ(all[i].body.index(), i) << "one of each, in order";
    const auto bytes = encode(all[i]);
    ASSERT_TRUE(bytes);
    const auto back = decode(*bytes);
    ASSERT_TRUE(back) << name_of(all[i].body) << ": " << back.error().message;
    EXPECT_TRUE(*back == all[i]) << name_of(all[i].body);
  }
}

TEST(Protocol, EmptyMessagesComeBackToo) {
  EXPECT_EQ(decode(*encode({9, StatusReply{}})).value(), (Envelope{9, StatusReply{}}));
  EXPECT_EQ(decode(*encode({9, RankStatus{}})).value(), (Envelope{9, RankStatus{}}));
  EXPECT_EQ(decode(*encode({9, EvictRequest{}})).value(), (Envelope{9, EvictRequest{}}));
  EXPECT_EQ(decode(*encode({9, AttachRequest{}})).value(), (Envelope{9, AttachRequest{}}));
  EXPECT_EQ(decode(*encode({9, AttachReply{}})).value(), (Envelope{9, AttachReply{}}));
}

TEST(Protocol, AnyTruncationOrTrailingByteIsRefused) {
  for (const Envelope& envelope : one_of_each()) {
    std::vector<std::byte> bytes = encode(envelope).value();
    for (std::size_t n = 0; n < bytes.size(); ++n)
      ASSERT_FALSE(decode(std::span(bytes).first(n))) << name_of(envelope.body) << " cut to " << n;
    bytes.push_back(std::byte{0});
    EXPECT_EQ(decode(bytes).error().reason, Reason::corrupt);
  }
}

TEST(Protocol, RandomDamageNeverDoesWorseThanAnError) {
  std::mt19937 random(3);
  std::size_t refused = 0;
  for (const Envelope& envelope : one_of_each()) {
    const std::vector<std::byte> good = encode(envelope).value();
    for (int round = 0; round < 3000; ++round) {
      std::vector<std::byte> bytes = good;
      const int hits = 1 + static_cast<int>(random() % 4);
      for (int i = 0; i < hits; ++i) bytes[random() % bytes.size()] = static_cast<std::byte>(random());
      const auto result = decode(bytes);
      if (!result) {
        ++refused;
        EXPECT_TRUE(result.error().reason == Reason::corrupt || result.error().reason == Reason::version);
      }
    }
  }
  EXPECT_GT(refused, 0u);
}

TEST(Protocol, RandomBytesAreRefused) {
  std::mt19937 random(5);
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::byte> bytes(random() % 200);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    EXPECT_FALSE(decode(bytes));
  }
}

// Thousands of offsets may point at one long string: 64 KiB that would become hundreds of megabytes.
TEST(Protocol, AMessageThatRepeatsItselfIsRefused) {
  flatbuffers::FlatBufferBuilder builder;
  const auto text = builder.CreateString(std::string(30000, 'x'));
  const std::vector<flatbuffers::Offset<flatbuffers::String>> entries(7000, text);
  const auto vector = builder.CreateVector(entries);
  // Tables by field number, as the schema has them: MountStatus.entries is 4, StatusReply.mount 2,
  // Envelope.id 0, body_type 1, body 2.
  const auto slot = [](int field) { return static_cast<flatbuffers::voffset_t>(4 + 2 * field); };
  auto start = builder.StartTable();
  builder.AddOffset(slot(4), vector);
  const flatbuffers::Offset<void> mount(builder.EndTable(start));
  start = builder.StartTable();
  builder.AddOffset(slot(2), mount);
  const flatbuffers::Offset<void> reply(builder.EndTable(start));
  start = builder.StartTable();
  builder.AddOffset(slot(2), reply);
  builder.AddElement<std::uint8_t>(slot(1), 5, 0);
  builder.FinishSizePrefixed(flatbuffers::Offset<void>(builder.EndTable(start)), "WCP1");
  ASSERT_LE(builder.GetSize(), kMaxMessageBytes);
  const auto* begin = reinterpret_cast<const std::byte*>(builder.GetBufferPointer());
  const auto result = decode({begin, builder.GetSize()});
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().message, "a message repeats itself beyond its own size");
}

TEST(Protocol, HalfAHandleIsRefused) {
  flatbuffers::FlatBufferBuilder builder;
  const auto handles = builder.CreateVector(std::vector<std::uint8_t>(96, 1));
  // By field number: AttachReply.handles is 3, and AttachReply the seventh of the union.
  auto start = builder.StartTable();
  builder.AddOffset(4 + 2 * 3, handles);
  const flatbuffers::Offset<void> reply(builder.EndTable(start));
  start = builder.StartTable();
  builder.AddOffset(8, reply);
  builder.AddElement<std::uint8_t>(6, 7, 0);
  builder.FinishSizePrefixed(flatbuffers::Offset<void>(builder.EndTable(start)), "WCP1");
  const auto* begin = reinterpret_cast<const std::byte*>(builder.GetBufferPointer());
  EXPECT_EQ(decode({begin, builder.GetSize()}).error().message, "handles are of 64 bytes each");
}

TEST(Protocol, WhatANewerPeerMaySendIsAVersionError) {
  flatbuffers::FlatBufferBuilder builder;
  auto start = builder.StartTable();
  const flatbuffers::Offset<void> body(builder.EndTable(start));
  start = builder.StartTable();
  builder.AddOffset(8, body);
  builder.AddElement<std::uint8_t>(6, 200, 0);
  builder.FinishSizePrefixed(flatbuffers::Offset<void>(builder.EndTable(start)), "WCP1");
  const auto* begin = reinterpret_cast<const std::byte*>(builder.GetBufferPointer());
  EXPECT_EQ(decode({begin, builder.GetSize()}).error().reason, Reason::version);
}

TEST(Protocol, TooLongAMessageIsNotEncoded) {
  RankStatus rank;
  rank.message = std::string(kMaxMessageBytes, 'x');
  EXPECT_EQ(encode({0, rank}).error().reason, Reason::internal);
}

TEST(Protocol, PagesCarryEverything) {
  StatusReply status;
  status.pid = 4;
  status.mount.path = "/mnt/wcache";
  for (int i = 0; i < 3000; ++i) status.mount.entries.push_back("target/" + std::string(32, 'f'));
  for (int i = 0; i < 1500; ++i)
    status.mount.pairs.push_back({std::string(32, 'f'), std::to_string(i) + std::string(28, 'e')});
  for (int i = 0; i < 500; ++i) {
    status.ranks.push_back(full_rank());
    status.ranks.back().rank = static_cast<std::uint32_t>(i);
  }
  const std::vector<StatusReply> pages = pages_of(status);
  StatusReply joined;
  for (std::size_t i = 0; i < pages.size(); ++i) {
    const auto back = decode(encode({1, pages[i]}).value());
    ASSERT_TRUE(back);
    const auto& page = std::get<StatusReply>(back->body);
    EXPECT_EQ(page.more, i + 1 < pages.size());
    EXPECT_EQ(page.pid, 4);
    if (i == 0) joined.mount.path = page.mount.path;
    joined.ranks.insert(joined.ranks.end(), page.ranks.begin(), page.ranks.end());
    joined.mount.entries.insert(joined.mount.entries.end(), page.mount.entries.begin(),
                                page.mount.entries.end());
    joined.mount.pairs.insert(joined.mount.pairs.end(), page.mount.pairs.begin(), page.mount.pairs.end());
  }
  joined.pid = 4;
  EXPECT_GT(pages.size(), 3u);
  EXPECT_TRUE(joined == status);
}

TEST(Protocol, TheWorstRankFitsAMessage) {
  RankStatus rank = full_rank();
  rank.source = std::string(4096, 's');
  rank.message = std::string(100000, 'm');
  rank.hint = std::string(100000, 'h');
  rank.holders.assign(5000, Holder{1, std::string(4096, 'c'), 1});
  StatusReply status;
  status.ranks = {rank, rank};
  for (const StatusReply& page : pages_of(status)) {
    ASSERT_TRUE(encode({1, page}));
    ASSERT_EQ(page.ranks.size(), 1u);
    EXPECT_FALSE(page.ranks[0].holders_complete);
  }
  EXPECT_FALSE(fit_holders(rank.holders));
  EXPECT_TRUE(encode({1, HoldersReply{rank.holders}}));
}

TEST(Protocol, VersionsMeetAtTheHighestOfBoth) {
  const auto with = [](std::uint16_t min, std::uint16_t max) {
    Hello hello;
    hello.min_version = min;
    hello.max_version = max;
    return negotiate(hello);
  };
  EXPECT_EQ(with(1, 1).value(), 1);
  EXPECT_EQ(with(1, 65535).value(), 1);
  for (const auto& [min, max] : {std::pair{0, 1}, std::pair{0, 0}, std::pair{2, 9}, std::pair{5, 1}})
    EXPECT_EQ(with(static_cast<std::uint16_t>(min), static_cast<std::uint16_t>(max)).error().reason,
              Reason::version)
        << min << " " << max;
}

TEST(Protocol, LongListsOfFilesComeInPagesThatFit) {
  std::vector<Key::File> files;
  for (std::uint64_t i = 0; i < 3000; ++i)
    files.push_back({"model-rank-" + std::to_string(i) + std::string(i % 200, 'x'), i, Digest{i, ~i}});
  std::vector<Key::File> back;
  const std::vector<GroupFiles> pages = file_pages_of(files);
  EXPECT_GT(pages.size(), 1u);
  for (std::size_t i = 0; i < pages.size(); ++i) {
    EXPECT_EQ(pages[i].more, i + 1 < pages.size());
    const auto bytes = encode({0, pages[i]});
    ASSERT_TRUE(bytes) << bytes.error().message;
    const auto page = std::get<GroupFiles>(decode(*bytes)->body);
    back.insert(back.end(), page.files.begin(), page.files.end());
  }
  EXPECT_EQ(back, files);
  EXPECT_EQ(file_pages_of({}).size(), 1u) << "an empty list is a page, so that its end is told";
}

}  // namespace
}  // namespace wcache

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "client/wcache.h"
#include "ipc/run_dir.h"
#include "tests/support/test_entry.h"
#include "tests/unit/client/rank_server.h"
#include "tests/unit/client/temporary_directory.h"

namespace wcache {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

class Library : public testing::Test {
 protected:
  test::TestEntry entry() const {
    test::TestEntryOptions options;
    options.memfd = true;
    return test::make_test_entry(files_, options);
  }

  wcache_reason open(const std::string& name, const wcache_options* options = nullptr) {
    return wcache_open(name.c_str(), run_dir_.path().c_str(), options, &opened_);
  }

  void TearDown() override { wcache_close(opened_); }

  std::vector<test::TestFile> files_ = {
      {"config.json", "{}"},
      test::test_weights("a.safetensors", {"a.first", "a.second"}, 4096),
      test::test_weights("b.safetensors", {"b.only"}, (std::uint64_t{3} << 20) + 5),
  };
  TemporaryDirectory directory_;
  const RunDir run_dir_ = RunDir::open(directory_.path()).value();
  wcache_entry* opened_ = nullptr;
};

std::string_view name_of(const wcache_tensor& tensor) {
  return {tensor.name, tensor.name_nbytes};
}

TEST_F(Library, GivesTheBytesOfEveryTensor) {
  const RankServer server(run_dir_, entry());
  ASSERT_EQ(open(server.fingerprint()), WCACHE_OK) << wcache_last_message();
  ASSERT_EQ(wcache_tensor_count(opened_), 3U);
  std::vector<std::string> names;
  for (std::size_t i = 0; i < 3; ++i) {
    wcache_tensor tensor;
    ASSERT_EQ(wcache_tensor_at(opened_, i, &tensor), WCACHE_OK) << wcache_last_message();
    names.emplace_back(name_of(tensor));
    const test::TestFile& file = files_[tensor.file == std::string_view("a.safetensors") ? 1 : 2];
    EXPECT_EQ(file.name, tensor.file);
    ASSERT_NE(tensor.data, nullptr);
    EXPECT_EQ(std::memcmp(tensor.data, file.bytes.data() + tensor.offset, tensor.nbytes), 0) << names.back();
    EXPECT_STREQ(tensor.dtype, "U8");
    ASSERT_EQ(tensor.ndim, 1U);
    EXPECT_EQ(tensor.shape[0], tensor.nbytes);
    EXPECT_EQ(tensor.number, i);
    EXPECT_EQ(static_cast<const std::byte*>(tensor.base) + tensor.offset, tensor.data);
    EXPECT_EQ(tensor.base_nbytes, file.bytes.size());
    EXPECT_EQ(tensor.slab_offset, tensor.offset);
    EXPECT_EQ(tensor.device_type, WCACHE_DEVICE_TYPE_CPU);
    EXPECT_EQ(tensor.device, WCACHE_DEVICE_HOST);
    EXPECT_EQ(tensor.read_only, 1);
    std::string copy(tensor.nbytes - 7, '\0');
    ASSERT_EQ(wcache_read(opened_, i, 7, copy.data(), copy.size()), WCACHE_OK) << wcache_last_message();
    EXPECT_EQ(copy, file.bytes.substr(tensor.offset + 7, copy.size()));
    EXPECT_EQ(wcache_read(opened_, i, 8, copy.data(), copy.size()), WCACHE_INVALID);
    EXPECT_EQ(tensor.digest,
              to_hex(segment_digest({static_cast<const std::byte*>(tensor.data), tensor.nbytes})));

    wcache_tensor again;
    ASSERT_EQ(wcache_tensor_find(opened_, names.back().c_str(), &again), WCACHE_OK);
    EXPECT_EQ(again.data, tensor.data);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"a.first", "a.second", "b.only"}));

  wcache_info info;
  ASSERT_EQ(wcache_entry_info(opened_, &info), WCACHE_OK);
  EXPECT_STREQ(info.role, "target");
  EXPECT_STREQ(info.name, "tiny");
  EXPECT_EQ(info.fingerprint, server.fingerprint());
  EXPECT_EQ(info.nbytes, files_[0].bytes.size() + files_[1].bytes.size() + files_[2].bytes.size());
  EXPECT_EQ(info.ranks, 1U);
  EXPECT_STREQ(info.tier, "host");
  EXPECT_STREQ(info.ipc_kind, "file");
  EXPECT_STREQ(info.device_uuid, "HOST-0");
  EXPECT_EQ(info.survives, 1);
}

TEST_F(Library, FindsANameOfAnyBytes) {
  const std::string name("odd\0name", 8);
  files_.push_back(test::test_weights("c.safetensors", {name}, 100));
  const RankServer server(run_dir_, entry());
  ASSERT_EQ(open("tiny"), WCACHE_OK) << wcache_last_message();
  wcache_tensor tensor;
  EXPECT_EQ(wcache_tensor_find_bytes(opened_, name.data(), name.size(), &tensor), WCACHE_OK)
      << wcache_last_message();
  EXPECT_EQ(name_of(tensor), name);
  EXPECT_EQ(wcache_tensor_find(opened_, name.c_str(), &tensor), WCACHE_NOT_FOUND);
  EXPECT_EQ(wcache_tensor_find_bytes(opened_, nullptr, 0, &tensor), WCACHE_INVALID);
}

TEST_F(Library, LoadsNoDriverForHostMemory) {
  setenv("WCACHE_LIBCUDA", "/no/libcuda.so.1", 1);
  const RankServer server(run_dir_, entry());
  ASSERT_EQ(open("tiny"), WCACHE_OK) << wcache_last_message();
  wcache_tensor tensor;
  EXPECT_EQ(wcache_tensor_find(opened_, "b.only", &tensor), WCACHE_OK) << wcache_last_message();
  unsetenv("WCACHE_LIBCUDA");
}

TEST_F(Library, AttachesThroughTheMountToWhatADeadDaemonLeft) {
  const RankServer mount(run_dir_, entry(), {.state = State::orphaned, .pid = 1, .is_mount = true});
  ASSERT_EQ(open("tiny"), WCACHE_OK) << wcache_last_message();
  EXPECT_TRUE(mount.attached_becomes(1));
  wcache_tensor tensor;
  ASSERT_EQ(wcache_tensor_find(opened_, "b.only", &tensor), WCACHE_OK) << wcache_last_message();
  EXPECT_EQ(std::memcmp(tensor.data, files_[2].bytes.data() + tensor.offset, tensor.nbytes), 0);
}

TEST_F(Library, SaysThatNothingIsLeftOfADeviceWhoseDaemonHasDied) {
  const RankServer mount(
      run_dir_, entry(),
      {.state = State::orphaned, .tier = "cuda", .ipc_kind = "cuda-ipc", .pid = 1, .is_mount = true});
  EXPECT_EQ(open("tiny"), WCACHE_NOT_RUNNING);
  EXPECT_THAT(wcache_last_message(), HasSubstr("has died"));
  EXPECT_THAT(wcache_last_hint(), HasSubstr("vmm"));
}

TEST_F(Library, FindsAnEntryByPrefixNameAndPath) {
  const RankServer server(run_dir_, entry());
  for (const std::string& name : {server.fingerprint().substr(0, 8), std::string("tiny"),
                                  "/mnt/wcache/target/" + server.fingerprint() + "/config.json",
                                  std::string("/mnt/wcache/target/by-name/tiny")}) {
    ASSERT_EQ(open(name), WCACHE_OK) << name << ": " << wcache_last_message();
    wcache_close(std::exchange(opened_, nullptr));
  }
}

TEST_F(Library, GoesStraightToTheDaemonOfAnEntryThatNamesItself) {
  const RankServer server(run_dir_, entry());
  wcache_options options = WCACHE_OPTIONS_INIT;
  for (const char* role : {static_cast<const char*>(nullptr), "target"}) {
    options.role = role;
    ASSERT_EQ(open(server.fingerprint(), &options), WCACHE_OK) << wcache_last_message();
    wcache_info info;
    ASSERT_EQ(wcache_entry_info(opened_, &info), WCACHE_OK);
    EXPECT_STREQ(info.role, "target");
    EXPECT_STREQ(info.name, "tiny");
    EXPECT_EQ(info.fingerprint, server.fingerprint());
    wcache_close(std::exchange(opened_, nullptr));
  }
  EXPECT_EQ(server.asked_for_status(), 0);

  options.role = "draft0";
  EXPECT_EQ(open(server.fingerprint(), &options), WCACHE_NOT_FOUND);
  ASSERT_EQ(open(server.fingerprint().substr(0, 31)), WCACHE_OK) << wcache_last_message();
  EXPECT_EQ(server.asked_for_status(), 2);
}

TEST_F(Library, AsksTheNodeWhereAnEntryThatNamesItselfIsNotThere) {
  const std::string other(32, '0');
  EXPECT_EQ(open(other), WCACHE_NOT_RUNNING);
  const RankServer mount(run_dir_, entry(), {.state = State::orphaned, .pid = 1, .is_mount = true});
  EXPECT_EQ(open(other), WCACHE_NOT_FOUND);
  ASSERT_EQ(open(mount.fingerprint()), WCACHE_OK) << wcache_last_message();
  EXPECT_EQ(mount.asked_for_status(), 2);
}

TEST_F(Library, TellsTheRowOfATensor) {
  const RankServer server(run_dir_, entry());
  ASSERT_EQ(open("tiny"), WCACHE_OK) << wcache_last_message();
  size_t number = 99;
  ASSERT_EQ(wcache_tensor_number(opened_, "b.only", 6, &number), WCACHE_OK) << wcache_last_message();
  EXPECT_EQ(number, 2U);
  wcache_tensor row;
  wcache_tensor tensor;
  ASSERT_EQ(wcache_tensor_describe(opened_, number, &row), WCACHE_OK) << wcache_last_message();
  ASSERT_EQ(wcache_tensor_at(opened_, number, &tensor), WCACHE_OK);
  EXPECT_EQ(name_of(row), "b.only");
  EXPECT_EQ(row.number, number);
  EXPECT_EQ(row.data, tensor.data);
  EXPECT_STREQ(row.digest, tensor.digest);
  EXPECT_EQ(wcache_tensor_number(opened_, "none", 4, &number), WCACHE_NOT_FOUND);
  EXPECT_EQ(wcache_tensor_number(opened_, nullptr, 0, &number), WCACHE_INVALID);
  EXPECT_EQ(wcache_tensor_number(opened_, "b.only", 6, nullptr), WCACHE_INVALID);
  EXPECT_EQ(wcache_tensor_describe(opened_, 3, &row), WCACHE_INVALID);
  EXPECT_EQ(number, 2U);
}

TEST_F(Library, IsSeenByTheDaemonUntilTheLastHoldGoes) {
  const RankServer server(run_dir_, entry());
  ASSERT_EQ(open("tiny"), WCACHE_OK) << wcache_last_message();
  EXPECT_TRUE(server.attached_becomes(1));
  wcache_tensor tensor;
  ASSERT_EQ(wcache_tensor_find(opened_, "a.first", &tensor), WCACHE_OK);
  wcache_hold(opened_);
  wcache_close(opened_);
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_EQ(server.attached(), 1);
  EXPECT_EQ(std::memcmp(tensor.data, files_[1].bytes.data() + tensor.offset, tensor.nbytes), 0);
  wcache_close(std::exchange(opened_, nullptr));
  EXPECT_TRUE(server.attached_becomes(0));
}

TEST_F(Library, KeepsTheBytesOfADaemonThatDied) {
  std::optional<RankServer> server(std::in_place, run_dir_, entry());
  ASSERT_EQ(open("tiny"), WCACHE_OK) << wcache_last_message();
  server.reset();
  wcache_tensor tensor;
  ASSERT_EQ(wcache_tensor_find(opened_, "b.only", &tensor), WCACHE_OK) << wcache_last_message();
  EXPECT_EQ(std::memcmp(tensor.data, files_[2].bytes.data() + tensor.offset, tensor.nbytes), 0);
}

TEST_F(Library, MapsAFileOnceForManyThreads) {
  const RankServer server(run_dir_, entry());
  ASSERT_EQ(open("tiny"), WCACHE_OK) << wcache_last_message();
  std::vector<const void*> seen(8);
  std::vector<std::thread> threads;
  for (const void*& data : seen) {
    threads.emplace_back([&] {
      wcache_tensor tensor;
      if (wcache_tensor_find(opened_, "b.only", &tensor) == WCACHE_OK) data = tensor.data;
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_NE(seen.front(), nullptr);
  EXPECT_THAT(seen, testing::Each(seen.front()));
}

TEST_F(Library, SaysWhatIsWrong) {
  EXPECT_EQ(open("tiny"), WCACHE_NOT_RUNNING);
  EXPECT_EQ(wcache_last_reason(), WCACHE_NOT_RUNNING);
  EXPECT_STREQ(wcache_reason_name(wcache_last_reason()), "not-running");
  EXPECT_THAT(wcache_last_message(), HasSubstr(run_dir_.path()));
  EXPECT_STRNE(wcache_last_hint(), "");

  const RankServer server(run_dir_, entry());
  EXPECT_EQ(open("other"), WCACHE_NOT_FOUND);
  EXPECT_EQ(open(""), WCACHE_INVALID);
  EXPECT_EQ(wcache_open("tiny", nullptr, nullptr, nullptr), WCACHE_INVALID);
  wcache_options options = WCACHE_OPTIONS_INIT;
  options.role = "draft7";
  EXPECT_EQ(open("tiny", &options), WCACHE_INVALID);
  options.role = "draft0";
  EXPECT_EQ(open("tiny", &options), WCACHE_NOT_FOUND);
  options = WCACHE_OPTIONS_INIT;
  options.rank = 1;
  EXPECT_EQ(open("tiny", &options), WCACHE_NOT_FOUND);
  options = WCACHE_OPTIONS_INIT;
  options.size = 3;
  EXPECT_EQ(open("tiny", &options), WCACHE_INVALID);
  EXPECT_EQ(opened_, nullptr);

  ASSERT_EQ(open("tiny"), WCACHE_OK);
  wcache_tensor tensor;
  EXPECT_EQ(wcache_tensor_find(opened_, "none", &tensor), WCACHE_NOT_FOUND);
  EXPECT_THAT(wcache_last_message(), HasSubstr("'none'"));
  EXPECT_EQ(wcache_tensor_at(opened_, 3, &tensor), WCACHE_INVALID);
  EXPECT_EQ(wcache_tensor_find(opened_, nullptr, &tensor), WCACHE_INVALID);
}

TEST_F(Library, KeepsErrorsApartByThread) {
  EXPECT_EQ(open("tiny"), WCACHE_NOT_RUNNING);
  std::thread([] { EXPECT_EQ(wcache_last_reason(), WCACHE_OK); }).join();
}

TEST_F(Library, TellsAnEntryThatDoesNotServe) {
  {
    const RankServer filling(run_dir_, entry(), {.state = State::filling});
    EXPECT_EQ(open("tiny"), WCACHE_NOT_READY);
    wcache_options options = WCACHE_OPTIONS_INIT;
    options.wait_ms = 50;
    EXPECT_EQ(open("tiny", &options), WCACHE_TIMEOUT);
  }
  const RankServer failed(run_dir_, entry(), {.state = State::failed});
  EXPECT_EQ(open("tiny"), WCACHE_OVER_BUDGET);
  EXPECT_THAT(wcache_last_message(), HasSubstr("needs 9 GiB"));
  EXPECT_STREQ(wcache_last_hint(), "raise the limit");
}

TEST_F(Library, WaitsForAnEntryToCome) {
  std::optional<RankServer> server;
  std::thread later([&] {
    std::this_thread::sleep_for(milliseconds(150));
    server.emplace(run_dir_, entry());
  });
  wcache_options options = WCACHE_OPTIONS_INIT;
  options.wait_ms = 20'000;
  EXPECT_EQ(open("tiny", &options), WCACHE_OK) << wcache_last_message();
  later.join();
}

TEST_F(Library, RefusesADaemonThatHandsOutSomethingElse) {
  {
    const RankServer other(run_dir_, entry(), {.fingerprint = "00112233445566778899aabbccddeeff"});
    EXPECT_EQ(open("tiny"), WCACHE_MISMATCH);
  }
  const RankServer short_of_a_file(run_dir_, entry(), {.drop_last_file = true});
  EXPECT_EQ(open("tiny"), WCACHE_CORRUPT);
}

/// Ranks of one entry: a tensor of its own bytes each, and one that is everywhere the same.
class LibraryRanks : public Library {
 protected:
  RankServer* serve(std::uint32_t rank) {
    test::TestFile file = test::test_weights("model-rank-" + std::to_string(rank) + "-part-0.safetensors",
                                             {"own", "same"}, 4096);
    const test::TestFile same = test::test_weights("same", {"own", "same"}, 4096);
    const TensorInfo& tail = file.tensors[1];
    file.bytes.replace(tail.offset, tail.nbytes, same.bytes, tail.offset, tail.nbytes);
    test::TestEntryOptions options;
    options.memfd = true;
    options.layout = Layout::sharded;
    options.rank = rank;
    options.tp_size = 2;
    options.fingerprint = Fingerprint{{1, 2}};
    Says says;
    says.rank = rank;
    says.device = "HOST-" + std::to_string(rank);
    servers_.push_back(
        std::make_unique<RankServer>(run_dir_, test::make_test_entry({std::move(file)}, options), says));
    return servers_.back().get();
  }

  std::vector<std::unique_ptr<RankServer>> servers_;
};

TEST_F(LibraryRanks, AreAllAttachedTo) {
  const RankServer* first = serve(0);
  const RankServer* second = serve(1);
  ASSERT_EQ(open("tiny"), WCACHE_OK) << wcache_last_message();
  EXPECT_TRUE(first->attached_becomes(1));
  EXPECT_TRUE(second->attached_becomes(1));
  ASSERT_EQ(wcache_tensor_count(opened_), 4U);
  std::vector<wcache_tensor> all(4);
  for (std::size_t i = 0; i < 4; ++i) ASSERT_EQ(wcache_tensor_at(opened_, i, &all[i]), WCACHE_OK);
  EXPECT_EQ(std::vector({all[0].rank, all[1].rank, all[2].rank, all[3].rank}),
            (std::vector<std::uint32_t>{0, 0, 1, 1}));
  EXPECT_STRNE(all[0].digest, all[2].digest);

  wcache_tensor tensor;
  EXPECT_EQ(wcache_tensor_find(opened_, "same", &tensor), WCACHE_OK) << wcache_last_message();
  EXPECT_EQ(wcache_tensor_find(opened_, "own", &tensor), WCACHE_INVALID);
}

TEST_F(LibraryRanks, AreGoneStraightTo) {
  const RankServer* first = serve(0);
  EXPECT_EQ(open(first->fingerprint()), WCACHE_NOT_READY);  // not all are there
  const int asked = first->asked_for_status();
  const RankServer* second = serve(1);
  ASSERT_EQ(open(first->fingerprint()), WCACHE_OK) << wcache_last_message();
  EXPECT_EQ(wcache_tensor_count(opened_), 4U);
  wcache_close(std::exchange(opened_, nullptr));
  wcache_options options = WCACHE_OPTIONS_INIT;
  options.rank = 1;
  ASSERT_EQ(open(first->fingerprint(), &options), WCACHE_OK) << wcache_last_message();
  wcache_tensor tensor;
  ASSERT_EQ(wcache_tensor_find(opened_, "own", &tensor), WCACHE_OK);
  EXPECT_EQ(tensor.rank, 1U);
  EXPECT_TRUE(first->attached_becomes(0));
  EXPECT_EQ(first->asked_for_status() + second->asked_for_status(), asked);
}

TEST_F(LibraryRanks, CanBeAttachedToAlone) {
  const RankServer* first = serve(0);
  serve(1);
  wcache_options options = WCACHE_OPTIONS_INIT;
  options.rank = 1;
  ASSERT_EQ(open("tiny", &options), WCACHE_OK) << wcache_last_message();
  EXPECT_EQ(first->attached(), 0);
  wcache_tensor tensor;
  ASSERT_EQ(wcache_tensor_find(opened_, "own", &tensor), WCACHE_OK);
  EXPECT_EQ(tensor.rank, 1U);
}

TEST_F(LibraryRanks, AreWaitedForTogether) {
  serve(0);
  EXPECT_EQ(open("tiny"), WCACHE_NOT_READY);
  EXPECT_THAT(wcache_last_message(), HasSubstr("1 of 2 ranks"));
}

TEST(LibraryNames, EveryReasonHasOne) {
  EXPECT_STREQ(wcache_reason_name(WCACHE_OK), "ok");
  EXPECT_STREQ(wcache_reason_name(WCACHE_INVALID), "invalid");
  EXPECT_STREQ(wcache_reason_name(WCACHE_INTERNAL), "internal");
  EXPECT_STREQ(wcache_reason_name(static_cast<wcache_reason>(17)), "unknown");
  EXPECT_EQ(std::string(wcache_version()).find_first_not_of("0123456789."), std::string::npos);
}

}  // namespace
}  // namespace wcache

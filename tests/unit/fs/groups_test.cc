#include "fs/groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/null_sink.h>
#include <unistd.h>

#include "tests/unit/fs/part_of.h"

namespace wcache {
namespace {

using namespace test;

class NoKernelCache : public KernelCache {
 public:
  int drop_name(std::uint64_t, const std::string&) override { return 0; }
  int delete_name(std::uint64_t, std::uint64_t, const std::string&) override { return 0; }
  int drop_attributes(std::uint64_t) override { return 0; }
};

class GroupsOfANode : public testing::Test {
 protected:
  static std::shared_ptr<const Part> part(std::uint32_t rank = 0, std::uint32_t tp_size = 1) {
    TestEntryOptions options;
    options.rank = rank;
    options.tp_size = tp_size;
    options.layout = tp_size > 1 ? Layout::sharded : Layout::checkpoint;
    options.fingerprint = kFingerprint;
    return part_of({{"rank" + std::to_string(rank) + ".bin", "x"}}, options);
  }
  std::shared_ptr<Entry> shown() const { return tree_.snapshot()->find(Role::target, kFingerprint); }
  std::uint64_t hold() {
    return files_.add({Node{NodeKind::file, 1, Role::target, shown(), 0}, OpenMode::cached, false, nullptr},
                      getpid());
  }

  static constexpr Fingerprint kFingerprint{{1, 2}};
  double now_ = 100;
  spdlog::logger log_{"test", std::make_shared<spdlog::sinks::null_sink_mt>()};
  Tree tree_{[] { return std::int64_t{0}; }};
  OpenFiles files_{[this] { return now_; }};
  NoKernelCache kernel_;
  Notifier notifier_{kernel_, log_};
  MappingScan mapped_;
  Groups groups_{tree_, files_, notifier_, [this](const Entry&) { return mapped_; }, [this] { return now_; }};
};

TEST_F(GroupsOfANode, AnEntryIsShownWithItsLastRank) {
  ASSERT_TRUE(groups_.join(1, part(0, 2)));
  EXPECT_EQ(shown(), nullptr);
  ASSERT_TRUE(groups_.join(2, part(1, 2)));
  ASSERT_NE(shown(), nullptr);
  EXPECT_EQ(shown()->state(), State::ready);
  EXPECT_EQ(shown()->files().size(), 2u);
  EXPECT_TRUE(groups_.orphans().empty());
}

TEST_F(GroupsOfANode, ALostRankOrphansAndANewOneMakesReady) {
  ASSERT_TRUE(groups_.join(1, part(0, 2)));
  ASSERT_TRUE(groups_.join(2, part(1, 2)));
  const auto before = shown();
  groups_.lose(2);
  EXPECT_EQ(shown(), before);
  EXPECT_EQ(before->state(), State::orphaned);
  const std::vector<RankStatus> orphans = groups_.orphans();
  ASSERT_EQ(orphans.size(), 1u);
  EXPECT_EQ(orphans[0].rank, 1u);
  EXPECT_EQ(orphans[0].state, State::orphaned);
  EXPECT_EQ(orphans[0].fingerprint, to_hex(kFingerprint));
  EXPECT_EQ(orphans[0].since, 100);
  ASSERT_TRUE(groups_.join(3, part(1, 2)));
  EXPECT_NE(shown(), before);
  EXPECT_EQ(shown()->state(), State::ready);
  groups_.lose(2);  // an old connection's end says nothing about the new one
  EXPECT_EQ(shown()->state(), State::ready);
}

TEST_F(GroupsOfANode, ALostRankThatWasNeverShownIsForgotten) {
  ASSERT_TRUE(groups_.join(1, part(0, 2)));
  groups_.lose(1);
  ASSERT_TRUE(groups_.join(2, part(1, 2)));
  EXPECT_EQ(shown(), nullptr);
}

TEST_F(GroupsOfANode, WithdrawalIsRefusedWhileHeld) {
  ASSERT_TRUE(groups_.join(1, part()));
  const std::uint64_t handle = hold();
  const WithdrawReply refused = groups_.withdraw(1, false);
  EXPECT_FALSE(refused.withdrawn);
  ASSERT_EQ(refused.holders.size(), 1u);
  EXPECT_EQ(refused.holders[0].pid, getpid());
  EXPECT_EQ(groups_.holders(1), refused.holders);
  EXPECT_NE(shown(), nullptr);
  files_.remove(handle);
  EXPECT_TRUE(groups_.withdraw(1, false).withdrawn);
  EXPECT_EQ(shown(), nullptr);
  EXPECT_TRUE(groups_.withdraw(1, false).withdrawn);  // nothing is there any more
  groups_.lose(1);
  EXPECT_TRUE(groups_.orphans().empty());
}

TEST_F(GroupsOfANode, AFileThatIsJustBeingReleasedDoesNotHold) {
  ASSERT_TRUE(groups_.join(1, part()));
  const std::uint64_t handle = hold();
  std::thread release([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    files_.remove(handle);
  });
  EXPECT_TRUE(groups_.withdraw(1, false).withdrawn);
  release.join();
}

TEST_F(GroupsOfANode, ForceTakesItAwayThoughHeld) {
  ASSERT_TRUE(groups_.join(1, part()));
  hold();
  EXPECT_TRUE(groups_.withdraw(1, true).withdrawn);
  EXPECT_EQ(shown(), nullptr);
}

TEST_F(GroupsOfANode, APartIsToldThatItsDaemonServesItNoMore) {
  const auto lost = part(), replaced = part(), withdrawn = part();
  ASSERT_TRUE(groups_.join(1, lost));
  EXPECT_TRUE(lost->has_daemon());
  groups_.lose(1);
  EXPECT_FALSE(lost->has_daemon());
  ASSERT_TRUE(groups_.join(2, replaced));
  ASSERT_TRUE(groups_.join(3, withdrawn));
  EXPECT_FALSE(replaced->has_daemon());
  EXPECT_TRUE(groups_.withdraw(3, true).withdrawn);
  EXPECT_FALSE(withdrawn->has_daemon());

  const auto waiting = part(0, 2), again = part(0, 2);  // for a rank that does not come
  ASSERT_TRUE(groups_.join(4, waiting));
  ASSERT_TRUE(groups_.join(5, again));
  EXPECT_FALSE(waiting->has_daemon());
  EXPECT_TRUE(again->has_daemon());
  groups_.lose(5);
  EXPECT_FALSE(again->has_daemon());
}

TEST_F(GroupsOfANode, AnOrphanTellsWhatBecameOfItsMemory) {
  TestEntryOptions options;
  options.fingerprint = kFingerprint;
  for (const char* kind : {"cuda-vmm", "cuda-ipc"}) {
    options.device = TestDevice{.ipc_kind = kind};
    const auto lost = part_of(small_model(), options);
    ASSERT_TRUE(groups_.join(1, lost));
    groups_.lose(1);
    const RankStatus rank = groups_.orphans().at(0);
    EXPECT_EQ(rank.tier, "cuda");
    EXPECT_GT(lost->slabs_nbytes(), 0u);
    EXPECT_EQ(rank.device_nbytes, std::string_view(kind) == "cuda-vmm" ? lost->slabs_nbytes() : 0u);
    EXPECT_EQ(rank.ipc_kind, kind);
    EXPECT_EQ(rank.survives, std::string_view(kind) == "cuda-vmm");
    EXPECT_FALSE(rank.context);
  }
  ASSERT_TRUE(groups_.join(1, part()));
  groups_.lose(1);
  EXPECT_TRUE(groups_.orphans().at(0).survives);
}

TEST_F(GroupsOfANode, OnlyTheOrphanedRankOfAGroupIsHandedOut) {
  ASSERT_TRUE(groups_.join(1, part(0, 2)));
  ASSERT_TRUE(groups_.join(2, part(1, 2)));
  groups_.lose(2);
  const auto hold_rank = [&](std::uint32_t rank) {
    return groups_.hold_orphan(Role::target, kFingerprint, rank, {4711, "engine", 0});
  };
  EXPECT_EQ(hold_rank(0).error().reason, Reason::not_found);
  EXPECT_EQ(hold_rank(2).error().reason, Reason::not_found);
  auto orphan = hold_rank(1);
  ASSERT_TRUE(orphan);
  EXPECT_EQ(orphan->part->manifest().rank(), 1u);
  EXPECT_EQ(groups_.orphans().at(0).holders, (std::vector<Holder>{{4711, "engine", 100}}));
  EXPECT_FALSE(groups_.withdraw(1, false).withdrawn) << "what is held stays whole";
  orphan->lease.reset();
  EXPECT_TRUE(groups_.orphans().at(0).holders.empty());
  EXPECT_TRUE(groups_.withdraw(1, false).withdrawn);
}

TEST_F(GroupsOfANode, OnlyAnOrphanCanBeEvictedHere) {
  const auto refusal = [&] { return groups_.evict_orphan(Role::target, kFingerprint).error(); };
  ASSERT_TRUE(groups_.join(1, part()));
  EXPECT_EQ(refusal().reason, Reason::not_found);
  groups_.lose(1);
  const std::uint64_t handle = hold();
  EXPECT_EQ(refusal().reason, Reason::busy);
  files_.remove(handle);
  mapped_.holders = {{4711, "engine", 0}};
  EXPECT_EQ(refusal().reason, Reason::busy);
  EXPECT_THAT(refusal().message, testing::HasSubstr("4711 (engine)"));
  EXPECT_EQ(groups_.orphans()[0].holders, mapped_.holders);
  EXPECT_NE(shown(), nullptr);
  mapped_.holders.clear();
  EXPECT_TRUE(groups_.evict_orphan(Role::target, kFingerprint));
  EXPECT_EQ(shown(), nullptr);
  EXPECT_EQ(refusal().reason, Reason::not_found);
}

}  // namespace
}  // namespace wcache

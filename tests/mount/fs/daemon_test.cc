#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <memory>
#include <string>

#include "ipc/client.h"
#include "tests/mount/fs/mounted.h"

namespace wcache::test {
namespace {

class DaemonTest : public MountTest {
 protected:
  static std::string state_of(const std::string& path) { return get_xattr(path, "user.wcache.state").value; }
};

TEST_F(DaemonTest, ServesWhatWasThereBeforeIt) {
  const FakeDaemon daemon(run_dir(), make_test_entry(small_model()));
  start();
  if (IsSkipped()) return;
  EXPECT_EQ(read_file(entry(daemon) + "/config.json"), small_model()[0].bytes);
  EXPECT_EQ(status().entries, std::vector<std::string>{"target/" + daemon.entry().directory()});
}

TEST_F(DaemonTest, AWithdrawnEntryIsGoneAtOnce) {
  start();
  if (IsSkipped()) return;
  FakeDaemon daemon(run_dir(), make_test_entry(small_model()));
  const std::string path = entry(daemon);
  EXPECT_EQ(read_file(path + "/config.json"), small_model()[0].bytes);
  EXPECT_TRUE(daemon.withdraw(false).withdrawn);
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_TRUE(eventually([&] { return !exists(mount() + "/target/by-name/tiny"); }));
  EXPECT_EQ(list(mount() + "/target"), std::set<std::string>{"by-name"});
}

TEST_F(DaemonTest, AnOpenFileHoldsTheEntryUnlessForced) {
  start();
  if (IsSkipped()) return;
  const std::string bytes = small_model()[4].bytes;
  FakeDaemon daemon(run_dir(), make_test_entry(small_model()));
  const std::string path = entry(daemon);
  Result<Fd> fd = open_file((path + "/" + small_model()[4].name).c_str(), O_RDONLY);
  ASSERT_TRUE(fd) << fd.error().message;
  const std::vector<Holder> holders = daemon.holders();
  ASSERT_EQ(holders.size(), 1u);
  EXPECT_EQ(holders[0].pid, getpid());
  EXPECT_EQ(holders[0].command, "fs_mount_test");
  EXPECT_EQ(get_xattr(path, "user.wcache.holders").value, "1");

  const WithdrawReply refused = daemon.withdraw(false);
  EXPECT_FALSE(refused.withdrawn);
  EXPECT_EQ(refused.holders, holders);
  EXPECT_TRUE(exists(path));

  EXPECT_TRUE(daemon.withdraw(true).withdrawn);
  EXPECT_FALSE(std::filesystem::exists(path));
  std::string got(bytes.size(), '\0');
  ASSERT_TRUE(read_exact(fd->get(), std::as_writable_bytes(std::span(got)), 0, "an old descriptor"));
  EXPECT_TRUE(got == bytes);
  struct stat st {};
  EXPECT_EQ(fstat(fd->get(), &st), 0);
}

TEST_F(DaemonTest, ADaemonThatDiesLeavesAnOrphanThatANewOneReplaces) {
  start();
  if (IsSkipped()) return;
  auto daemon = std::make_unique<FakeDaemon>(run_dir(), make_test_entry(small_model()));
  const std::string path = entry(*daemon);
  struct stat before {};
  ASSERT_EQ(stat(path.c_str(), &before), 0);
  Result<Fd> old = open_file((path + "/config.json").c_str(), O_RDONLY);
  ASSERT_TRUE(old) << old.error().message;
  daemon.reset();
  EXPECT_TRUE(eventually([&] { return state_of(path) == "orphaned"; }));
  EXPECT_EQ(read_file(path + "/config.json"), small_model()[0].bytes);
  const std::vector<RankStatus> ranks = whole_status().ranks;
  ASSERT_EQ(ranks.size(), 1u);
  EXPECT_EQ(ranks[0].state, State::orphaned);
  EXPECT_EQ(ranks[0].fingerprint, std::filesystem::path(path).filename());

  daemon = std::make_unique<FakeDaemon>(run_dir(), make_test_entry(small_model()));
  EXPECT_TRUE(eventually([&] { return state_of(path) == "ready"; }));
  struct stat after {};
  ASSERT_EQ(stat(path.c_str(), &after), 0);
  EXPECT_NE(before.st_ino, after.st_ino);  // another memory is another inode
  EXPECT_EQ(read_file(path + "/config.json"), small_model()[0].bytes);
  EXPECT_EQ(whole_status().ranks.size(), 0u);
  std::string got(small_model()[0].bytes.size(), '\0');
  EXPECT_TRUE(read_exact(old->get(), std::as_writable_bytes(std::span(got)), 0, "an old descriptor"));
  EXPECT_EQ(got, small_model()[0].bytes);
}

TEST_F(DaemonTest, AnOrphanIsEvictedThroughTheMount) {
  start();
  if (IsSkipped()) return;
  const TestFile weights = small_model()[4];
  auto daemon = std::make_unique<FakeDaemon>(run_dir(), make_test_entry(small_model()));
  const std::string path = entry(*daemon);
  const std::string fingerprint = daemon->entry().directory();
  Result<Fd> fd = open_file((path + "/" + weights.name).c_str(), O_RDONLY);
  ASSERT_TRUE(fd) << fd.error().message;
  Result<Mapping> mapping = Mapping::map(fd->get(), weights.bytes.size(), PROT_READ, MAP_SHARED, "weights");
  ASSERT_TRUE(mapping) << mapping.error().message;
  fd->reset();
  daemon.reset();
  ASSERT_TRUE(eventually([&] { return state_of(path) == "orphaned"; }));
  Result<Client> client = Client::connect(run_dir().mount_socket(), Purpose::command, "test",
                                          deadline_in(std::chrono::seconds(5)));
  ASSERT_TRUE(client) << client.error().message;
  const auto evict = [&](const std::string& entry) {
    return client->request<EvictReply>(EvictRequest{"target", entry}, deadline_in(std::chrono::seconds(5)));
  };
  EXPECT_EQ(evict(std::string(32, '0')).error().reason, Reason::not_found);
  Result<EvictReply> refused = evict(fingerprint);
  EXPECT_EQ(refused.error().reason, Reason::busy);  // a mapping is enough
  EXPECT_NE(refused.error().message.find(std::to_string(getpid())), std::string::npos);
  mapping->reset();
  EXPECT_TRUE(evict(fingerprint));
  EXPECT_FALSE(exists(path));
}

TEST_F(DaemonTest, TargetAndDraftNameEachOther) {
  start();
  if (IsSkipped()) return;
  TestEntryOptions options;
  options.role = Role::draft0;
  const FakeDaemon target(run_dir(), make_test_entry(small_model()));
  const FakeDaemon draft(run_dir(), make_test_entry(small_model(), options), Role::draft0);
  Result<Client> client = Client::connect(run_dir().mount_socket(), Purpose::launcher, "test",
                                          deadline_in(std::chrono::seconds(5)));
  ASSERT_TRUE(client) << client.error().message;
  EXPECT_TRUE(client->request<PairReply>(PairRequest{target.entry().directory(), draft.entry().directory()},
                                         deadline_in(std::chrono::seconds(5))));
  entry(draft, Role::draft0);
  EXPECT_EQ(get_xattr(entry(target), "user.wcache.draft").value,
            mount() + "/draft0/" + draft.entry().directory());
  EXPECT_EQ(get_xattr(entry(draft, Role::draft0), "user.wcache.target").value,
            mount() + "/target/" + target.entry().directory());
  EXPECT_EQ(
      client->request<PairReply>(PairRequest{"x", "y"}, deadline_in(std::chrono::seconds(5))).error().reason,
      Reason::invalid);
}

TEST_F(DaemonTest, AListingThatIsUnderWayStaysWhole) {
  start();
  if (IsSkipped()) return;
  std::vector<std::string> names;
  for (int i = 0; i < 3000; ++i) names.push_back("layer." + std::to_string(i));
  FakeDaemon daemon(run_dir(), make_test_entry({test_weights("model.safetensors", names, 4)}));
  const std::string path = entry(daemon) + "/.wcache/tensors";
  std::filesystem::directory_iterator row(path);
  EXPECT_TRUE(daemon.withdraw(true).withdrawn);
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_EQ(std::distance(row, std::filesystem::directory_iterator()), 3000);
}

TEST_F(DaemonTest, TheEntryOfAShardedGroupAppearsWithItsLastRank) {
  start();
  if (IsSkipped()) return;
  // The group's fingerprint covers all ranks; the fake ranks are given one that both agree on.
  TestEntryOptions options;
  options.tp_size = 2;
  options.layout = Layout::sharded;
  const std::vector<TestFile> common{{"config.json", "{}"}};
  std::vector<TestFile> rank0 = common, rank1 = common;
  rank0.push_back(test_weights("model-rank-0-part-0.safetensors", {"a", "b"}, 100));
  rank1.push_back(test_weights("model-rank-1-part-0.safetensors", {"a", "b"}, 100));
  options.fingerprint = Fingerprint{{1, 2}};
  const FakeDaemon first(run_dir(), make_test_entry(rank0, options), Role::target, "HOST-0");
  const std::string path = mount() + "/target/" + first.entry().directory();
  usleep(200'000);
  EXPECT_FALSE(exists(path));
  options.rank = 1;
  const FakeDaemon second(run_dir(), make_test_entry(rank1, options), Role::target, "HOST-1");
  entry(second);
  EXPECT_EQ(list(path), (std::set<std::string>{".wcache", "config.json", "model-rank-0-part-0.safetensors",
                                               "model-rank-1-part-0.safetensors"}));
  EXPECT_TRUE(read_file(path + "/model-rank-1-part-0.safetensors") == rank1[1].bytes);
  EXPECT_EQ(get_xattr(path + "/model-rank-1-part-0.safetensors", "user.wcache.rank").value, "1");
  EXPECT_EQ(list(path + "/.wcache/tensors"), (std::set<std::string>{"a", "b"}));
}

TEST_F(DaemonTest, NothingIsLeftOpenByEntriesThatCameAndWent) {
  start();
  if (IsSkipped()) return;
  const auto round = [&] {
    FakeDaemon daemon(run_dir(), make_test_entry(small_model()));
    EXPECT_EQ(read_file(entry(daemon) + "/config.json"), small_model()[0].bytes);
    list(entry(daemon) + "/.wcache/tensors");
    EXPECT_TRUE(daemon.withdraw(true).withdrawn);
  };
  round();
  EXPECT_TRUE(eventually([&] { return !exists(mount() + "/target/by-name/tiny"); }));
  std::size_t settled = open_descriptors(pid());
  EXPECT_TRUE(eventually([&] {
    const std::size_t now = open_descriptors(pid());
    return std::exchange(settled, now) == now;
  }));
  for (int i = 0; i < 10; ++i) round();
  EXPECT_TRUE(eventually([&] { return open_descriptors(pid()) <= settled; }))
      << settled << " " << open_descriptors(pid());
}

}  // namespace
}  // namespace wcache::test

#include "fs/tree.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <thread>
#include <vector>

#include "fs/node_stat.h"
#include "tests/unit/fs/part_of.h"

namespace wcache {
namespace {

using namespace test;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

class TreeOfEntries : public testing::Test {
 protected:
  static std::vector<TestFile> files(const std::string& content) { return {{"config.json", content}}; }
  static std::shared_ptr<Entry> named(const std::string& name, const std::string& content) {
    TestEntryOptions options;
    options.name = name;
    return entry_of(files(content), options);
  }

  std::vector<std::string> names(const Node& directory) const {
    std::vector<std::string> names;
    std::uint64_t last = 0;
    tree_.snapshot()->list(directory, 0, [&](std::string_view name, const Node&, std::uint64_t cookie) {
      EXPECT_GT(cookie, last);
      last = cookie;
      names.emplace_back(name);
      return true;
    });
    return names;
  }
  Node at(const std::string& path) const {
    const auto snapshot = tree_.snapshot();
    Node node = *snapshot->node(kRootInode);
    for (std::size_t begin = 0; begin < path.size();) {
      const std::size_t end = std::min(path.find('/', begin), path.size());
      const std::optional<Node> next = snapshot->lookup(node, path.substr(begin, end - begin));
      if (!next) {
        ADD_FAILURE() << path;
        return {};
      }
      node = *next;
      begin = end + 1;
    }
    return node;
  }

  std::int64_t now_ = 5'000'000'000;
  Tree tree_{[this] { return now_; }};
};

TEST_F(TreeOfEntries, EmptyHasItsFixedNodes) {
  EXPECT_THAT(names(at("")), ElementsAre(".", "..", "README", "status.json", "target", "draft0"));
  EXPECT_THAT(names(at("target")), ElementsAre(".", "..", "by-name"));
  EXPECT_THAT(names(at("draft0/by-name")), ElementsAre(".", ".."));
  EXPECT_EQ(tree_.snapshot()->lookup(at("target"), "nothing"), std::nullopt);
}

TEST_F(TreeOfEntries, EveryNodeIsFoundByItsNumberAndItsName) {
  const auto entry = entry_of(small_model());
  tree_.publish(entry);
  const auto snapshot = tree_.snapshot();
  std::set<std::uint64_t> seen;
  const std::function<void(const Node&)> walk = [&](const Node& directory) {
    snapshot->list(directory, 0, [&](std::string_view name, const Node& node, std::uint64_t) {
      if (name == "." || name == "..") return true;
      EXPECT_TRUE(seen.insert(node.inode).second) << name;
      const std::optional<Node> again = snapshot->node(node.inode);
      EXPECT_TRUE(again) << name;
      EXPECT_EQ(again->kind, node.kind) << name;
      EXPECT_EQ(again->index, node.index) << name;
      const std::optional<Node> looked_up = snapshot->lookup(directory, name);
      EXPECT_TRUE(looked_up) << name;
      EXPECT_EQ(looked_up->inode, node.inode) << name;
      EXPECT_EQ(snapshot->parent(node).inode, directory.inode) << name;
      if (node.is_directory()) walk(node);
      return true;
    });
  };
  walk(at(""));
  EXPECT_EQ(seen.size(), 6u + entry->inode_count());  // the fixed nodes but the root, and all of the range
  EXPECT_EQ(snapshot->node(entry->base() + entry->inode_count()), std::nullopt);
  EXPECT_EQ(snapshot->node(0), std::nullopt);
}

TEST_F(TreeOfEntries, SubdirectoriesAndTensors) {
  tree_.publish(entry_of(small_model()));
  const std::string entry = "target/" + tree_.snapshot()->entries(Role::target)[0]->directory_name();
  EXPECT_THAT(names(at(entry + "/sub")), ElementsAre(".", "..", "deep"));
  EXPECT_THAT(names(at(entry + "/sub/deep")), ElementsAre(".", "..", "notes.txt"));
  EXPECT_THAT(names(at(entry + "/.wcache/tensors")),
              UnorderedElementsAre(".", "..", "%2E", "a%2Fb%25c", "lm_head.weight", "model.embed.weight"));
  EXPECT_EQ(at(entry + "/.wcache/tensors/a%2Fb%25c").kind, NodeKind::tensor);
  EXPECT_EQ(tree_.snapshot()->lookup(at(entry + "/.wcache/tensors"), "a/b%c"), std::nullopt);
}

TEST_F(TreeOfEntries, AListingGoesOnWhereItStopped) {
  std::vector<std::string> tensors;
  for (int i = 0; i < 50; ++i) tensors.push_back("t" + std::to_string(i));
  tree_.publish(entry_of({test_weights("m.safetensors", tensors, 1)}));
  const Node node =
      at("target/" + tree_.snapshot()->entries(Role::target)[0]->directory_name() + "/.wcache/tensors");
  std::vector<std::string> one_by_one;
  std::uint64_t cookie = 0;
  for (bool more = true; more;) {
    more = false;
    tree_.snapshot()->list(node, cookie, [&](std::string_view name, const Node&, std::uint64_t next) {
      if (more) return false;
      one_by_one.emplace_back(name);
      cookie = next;
      return more = true;
    });
  }
  EXPECT_EQ(one_by_one, names(node));
}

TEST_F(TreeOfEntries, TheNewestEntryOfANameOwnsTheLink) {
  const auto first = named("m", "1"), second = named("m", "2");
  EXPECT_THAT(tree_.publish(first), ElementsAre(TreeChange{kByNameInode, "m", 0, false},
                                                TreeChange{kRoleInode, first->directory_name(), 0, false}));
  const std::uint64_t first_link = first->base() + Entry::kByNameLink;
  EXPECT_THAT(tree_.publish(second), ElementsAre(TreeChange{kByNameInode, "m", first_link, false},
                                                 TreeChange{kRoleInode, second->directory_name(), 0, false}));
  EXPECT_EQ(at("target/by-name/m").entry, second);
  tree_.withdraw(Role::target, second->fingerprint());
  EXPECT_EQ(at("target/by-name/m").entry, first);
  tree_.withdraw(Role::target, first->fingerprint());
  EXPECT_THAT(names(at("target/by-name")), ElementsAre(".", ".."));
}

TEST_F(TreeOfEntries, ANameThatIsNoFileNameHasNoLink) {
  tree_.publish(named("a/b", "1"));
  tree_.publish(named("..", "2"));
  tree_.publish(named("", "3"));
  EXPECT_THAT(names(at("target/by-name")), ElementsAre(".", ".."));
  EXPECT_EQ(tree_.snapshot()->entries(Role::target).size(), 3u);
}

TEST_F(TreeOfEntries, InodeNumbersAreNeverUsedTwice) {
  std::uint64_t end = kFirstEntryInode;
  for (int i = 0; i < 3; ++i) {
    const auto entry = named("m", "same");
    const std::vector<TreeChange> changes = tree_.publish(entry);
    EXPECT_GE(entry->base(), end);
    end = entry->base() + entry->inode_count();
    EXPECT_EQ(tree_.snapshot()->entries(Role::target).size(), 1u);
    EXPECT_EQ(changes.back().removed != 0, i > 0);
  }
}

TEST_F(TreeOfEntries, AnEntryThatIsGoneLivesWhileSomebodyLooksAtIt) {
  std::weak_ptr<Entry> weak;
  std::shared_ptr<const TreeSnapshot> old;
  std::uint64_t inode = 0;
  {
    const auto entry = named("m", "1");
    weak = entry;
    tree_.publish(entry);
    inode = entry->directory_inode(0);
    old = tree_.snapshot();
    EXPECT_THAT(tree_.withdraw(Role::target, entry->fingerprint()), testing::SizeIs(2));
    EXPECT_THAT(tree_.withdraw(Role::target, entry->fingerprint()), IsEmpty());
  }
  EXPECT_TRUE(old->node(inode));
  EXPECT_FALSE(tree_.snapshot()->node(inode));
  EXPECT_FALSE(weak.expired());
  old.reset();
  EXPECT_TRUE(weak.expired());
}

TEST_F(TreeOfEntries, StatTellsSizesModesAndTimes) {
  const auto entry = entry_of(small_model());
  now_ = 9'000'000'001;
  tree_.publish(entry);
  const auto stat_at = [&](const std::string& path) {
    return stat_of(at(path), *tree_.snapshot(), {17, 18, 3'000'000'000, 99});
  };
  const std::string base = "target/" + entry->directory_name();
  EXPECT_EQ(stat_at("").st_mode, S_IFDIR | 0555u);
  EXPECT_EQ(stat_at("").st_mtim.tv_sec, 3);
  EXPECT_EQ(stat_at("target").st_mtim.tv_nsec, 1);
  EXPECT_EQ(stat_at("target").st_nlink, 4u);
  EXPECT_EQ(stat_at("status.json").st_size, 99);
  EXPECT_EQ(stat_at("target/by-name/tiny").st_size, 35);
  EXPECT_TRUE(S_ISLNK(stat_at("target/by-name/tiny").st_mode));
  EXPECT_EQ(stat_at(base).st_nlink, 4u);  // sub and .wcache
  const struct stat weights = stat_at(base + "/model-00002-of-00002.safetensors");
  EXPECT_EQ(weights.st_mode, S_IFREG | 0444u);
  EXPECT_EQ(weights.st_size, 100'065);
  EXPECT_EQ(weights.st_uid, 17u);
  EXPECT_EQ(weights.st_gid, 18u);
  EXPECT_EQ(weights.st_mtim.tv_sec, 1'700'000'000);
  EXPECT_EQ(stat_at(base + "/.wcache/tensors/lm_head.weight").st_size, 100'001);
  EXPECT_EQ(static_cast<std::size_t>(stat_at(base + "/.wcache/manifest.json").st_size),
            entry->manifest_json()->size());
}

TEST_F(TreeOfEntries, ReadersAndWritersAtOnce) {
  std::atomic<bool> stop = false;
  std::vector<std::thread> readers;
  for (int i = 0; i < 3; ++i)
    readers.emplace_back([&] {
      while (!stop) {
        const auto snapshot = tree_.snapshot();
        for (const auto& entry : snapshot->entries(Role::target))
          EXPECT_TRUE(snapshot->node(entry->directory_inode(0)));
      }
    });
  for (int i = 0; i < 50; ++i) {
    const auto entry = named("m", std::to_string(i % 5));
    tree_.publish(entry);
    if (i % 3 == 0) tree_.withdraw(Role::target, entry->fingerprint());
  }
  stop = true;
  for (std::thread& reader : readers) reader.join();
}

}  // namespace
}  // namespace wcache

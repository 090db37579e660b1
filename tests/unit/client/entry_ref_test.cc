#include "client/entry_ref.h"

#include <gtest/gtest.h>

namespace wcache {
namespace {

const std::string kFirst = "00112233445566778899aabbccddeeff";
const std::string kSecond = "00112233ffffffffffffffffffffffff";

GroupStatus group(std::string role, std::string name, std::string fingerprint, double since = 1,
                  State state = State::ready) {
  GroupStatus status;
  status.role = std::move(role);
  status.name = std::move(name);
  status.fingerprint = std::move(fingerprint);
  status.since = since;
  status.state = state;
  return status;
}

NodeStatus node(std::vector<GroupStatus> groups) {
  NodeStatus status;
  status.run_dir = "/run/wcache";
  status.mount = MountStatus{"/mnt/wcache", 9, true, "", {}};
  status.groups = std::move(groups);
  return status;
}

TEST(ResolveEntry, ByFingerprintAndUniquePrefix) {
  const NodeStatus two = node({group("target", "a", kFirst), group("target", "b", kSecond)});
  EXPECT_EQ(resolve_entry(two, kFirst, "").value().name, "a");
  EXPECT_EQ(resolve_entry(two, "00112233f", "").value().name, "b");
  EXPECT_EQ(resolve_entry(two, "00112233", "").error().reason, Reason::invalid);
  EXPECT_EQ(resolve_entry(two, "0011223", "").error().reason, Reason::not_found);  // 7 digits
  EXPECT_EQ(resolve_entry(two, "aaaaaaaa", "").error().reason, Reason::not_found);
}

TEST(ResolveEntry, ByNameTheNewestReadyOneOwnsIt) {
  const NodeStatus three = node({group("target", "a", kFirst, 5), group("target", "a", kSecond, 9),
                                 group("target", "a", "", 20, State::filling)});
  EXPECT_EQ(resolve_entry(three, "a", "").value().fingerprint, kSecond);
  EXPECT_EQ(resolve_entry(node({group("target", "a", "", 20, State::filling)}), "a", "").value().state,
            State::filling);
}

TEST(ResolveEntry, TwoRolesNeedTheRole) {
  const NodeStatus both = node({group("target", "a", kFirst), group("draft0", "a", kSecond)});
  const auto either = resolve_entry(both, "a", "");
  ASSERT_FALSE(either);
  EXPECT_EQ(either.error().reason, Reason::invalid);
  EXPECT_EQ(either.error().key, "--role");
  EXPECT_EQ(resolve_entry(both, "a", "draft0").value().fingerprint, kSecond);
}

TEST(ResolveEntry, ANameThatLooksLikeAPrefixIsStillAName) {
  EXPECT_EQ(resolve_entry(node({group("target", "deadbeef", kFirst)}), "deadbeef", "").value().fingerprint,
            kFirst);
}

TEST(ResolveEntry, ByPathInTheTree) {
  const NodeStatus both = node({group("target", "a", kFirst), group("draft0", "a", kSecond)});
  EXPECT_EQ(resolve_entry(both, "/mnt/wcache/target/" + kFirst, "").value().fingerprint, kFirst);
  EXPECT_EQ(
      resolve_entry(both, "/mnt/wcache/target/" + kFirst + "/model.safetensors", "").value().fingerprint,
      kFirst);
  EXPECT_EQ(resolve_entry(both, "/mnt/wcache/draft0/by-name/a/", "").value().fingerprint, kSecond);
  EXPECT_EQ(resolve_entry(both, "/mnt/wcache/draft0/" + kFirst, "").error().reason, Reason::not_found);
  EXPECT_EQ(resolve_entry(both, "/elsewhere/target/" + kFirst, "").error().reason, Reason::not_found);
  EXPECT_EQ(resolve_entry(both, "/mnt/wcache", "").error().reason, Reason::not_found);
  EXPECT_EQ(resolve_entry(both, "/mnt/wcache/target/" + kFirst, "draft0").error().key, "--role");
}

TEST(ExactEntry, IsAWholeFingerprintOrAPathByOne) {
  const auto mounts = [] {
    MountEntry other;
    other.path = "/";
    other.type = "ext4";
    MountEntry tree;
    tree.path = "/mnt/wcache";
    tree.type = "fuse.wcachefs";
    return std::vector{other, tree};
  };
  const auto exact = [&](const std::string& entry, const std::string& role = {}) {
    const std::optional<ExactEntry> found = exact_entry(entry, role, mounts);
    return found ? found->role + ":" + found->fingerprint : "none";
  };
  EXPECT_EQ(exact(kFirst), ":" + kFirst);
  EXPECT_EQ(exact(kFirst, "draft0"), "draft0:" + kFirst);
  EXPECT_EQ(exact("/mnt/wcache/draft0/" + kFirst), "draft0:" + kFirst);
  EXPECT_EQ(exact("/mnt/x/../wcache/target/" + kFirst + "/model.safetensors", "target"), "target:" + kFirst);
  EXPECT_EQ(exact("/mnt/wcache/target/" + kFirst, "draft0"), "none");
  EXPECT_EQ(exact("/mnt/wcache/target/by-name/a"), "none");
  EXPECT_EQ(exact("/elsewhere/target/" + kFirst), "none");
  EXPECT_EQ(exact(kFirst.substr(1)), "none");
  EXPECT_EQ(exact("tiny"), "none");
  EXPECT_EQ(exact(std::string(32, 'x')), "none");
}

TEST(ResolveEntry, NothingRuns) {
  EXPECT_EQ(resolve_entry(node({}), kFirst, "").error().reason, Reason::not_running);
}

}  // namespace
}  // namespace wcache

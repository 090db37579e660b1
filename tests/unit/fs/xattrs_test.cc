#include "fs/xattrs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/version.h"
#include "fs/tree.h"
#include "tests/unit/fs/part_of.h"

namespace wcache {
namespace {

using namespace test;
using testing::ElementsAre;
using testing::IsEmpty;

class XattrTable : public testing::Test {
 protected:
  void show(std::vector<TestFile> files, const TestEntryOptions& options = {}) {
    entry_ = entry_of(std::move(files), options);
    tree_.publish(entry_);
  }
  Node directory() const { return *tree_.snapshot()->node(entry_->directory_inode(0)); }
  Node below(const Node& node, const std::string& name) const {
    return *tree_.snapshot()->lookup(node, name);
  }
  Node tensor(const std::string& name) const {
    return below(below(below(directory(), ".wcache"), "tensors"), name);
  }
  XattrContext context() const {
    return {[](const Entry&) { return std::size_t{3}; },
            [tree = tree_.snapshot()](const Entry& entry) { return tree->partner(entry); }, "/mnt",
            "/run/wcachefs.sock", owner_};
  }
  std::string value(const Node& node, const std::string& name) const {
    return xattr_value(node, "user.wcache." + name, context()).value_or("(none)");
  }
  int refusal(const Node& node, const std::string& name) const {
    const auto value = xattr_value(node, "user.wcache." + name, context());
    return value ? 0 : value.error();
  }
  /// An entry on as many devices as are given, each holding the whole.
  void show_on(const std::vector<TestDevice>& devices) {
    std::vector<std::shared_ptr<const Part>> parts;
    for (const TestDevice& device : devices) {
      TestEntryOptions options;
      options.device = device;
      options.node_ranks = static_cast<std::uint32_t>(devices.size());
      options.rank = static_cast<std::uint32_t>(parts.size());
      parts.push_back(part_of(small_model(), options));
    }
    entry_ = *Entry::make(std::move(parts), 0);
    tree_.publish(entry_);
  }
  std::vector<std::string> short_names(const Node& node) const {
    std::vector<std::string> names;
    for (const std::string& name : xattr_names(node, context()))
      names.push_back(name.substr(sizeof "user.wcache." - 1));
    return names;
  }

  Tree tree_{[] { return std::int64_t{0}; }};
  std::shared_ptr<Entry> entry_;
  bool owner_ = true;
};

const std::string kFirstFile = "model-00001-of-00002.safetensors";

TEST_F(XattrTable, Root) {
  const Node root = *tree_.snapshot()->node(kRootInode);
  EXPECT_THAT(short_names(root), ElementsAre("version", "protocol"));
  EXPECT_EQ(value(root, "version"), version());
  EXPECT_EQ(value(root, "protocol"), "1");
}

TEST_F(XattrTable, EntryDirectory) {
  show(small_model());
  const Node node = directory();
  EXPECT_THAT(short_names(node),
              ElementsAre("role", "name", "fingerprint", "state", "layout", "source", "architecture", "dtype",
                          "tp_size", "nbytes", "tensors", "holders", "digest"));
  EXPECT_EQ(value(node, "role"), "target");
  EXPECT_EQ(value(node, "name"), "tiny");
  EXPECT_EQ(value(node, "fingerprint"), entry_->directory_name());
  EXPECT_EQ(value(node, "state"), "ready");
  EXPECT_EQ(value(node, "layout"), "checkpoint");
  EXPECT_EQ(value(node, "source"), "/models/tiny");
  EXPECT_EQ(value(node, "architecture"), "TinyForCausalLM");
  EXPECT_EQ(value(node, "dtype"), "bfloat16");
  EXPECT_EQ(value(node, "quantization"), "(none)");
  EXPECT_EQ(value(node, "tp_size"), "1");
  EXPECT_EQ(value(node, "tensors"), "4");
  EXPECT_EQ(value(node, "holders"), "3");
  EXPECT_EQ(value(node, "digest"), entry_->directory_name());
  entry_->set_state(State::orphaned);
  EXPECT_EQ(value(node, "state"), "orphaned");
}

TEST_F(XattrTable, TargetAndDraftNameEachOtherWhileBothAreShown) {
  show(small_model());
  const auto target = entry_;
  TestEntryOptions options;
  options.role = Role::draft0;
  const auto draft = entry_of({{"config.json", "draft"}}, options);
  tree_.pair(target->fingerprint(), draft->fingerprint());
  EXPECT_EQ(value(directory(), "draft"), "(none)");
  tree_.publish(draft);
  EXPECT_EQ(value(directory(), "draft"), "/mnt/draft0/" + draft->directory_name());
  EXPECT_EQ(value(directory(), "target"), "(none)");
  entry_ = draft;
  EXPECT_EQ(value(directory(), "target"), "/mnt/target/" + target->directory_name());
  EXPECT_THAT(short_names(directory()), testing::Contains("target"));

  // The last pair said counts, of those that are shown.
  const auto other = entry_of({{"config.json", "another draft"}}, options);
  tree_.pair(target->fingerprint(), other->fingerprint());
  entry_ = target;
  EXPECT_EQ(value(directory(), "draft"), "/mnt/draft0/" + draft->directory_name());
  tree_.publish(other);
  EXPECT_EQ(value(directory(), "draft"), "/mnt/draft0/" + other->directory_name());
  tree_.withdraw(Role::draft0, other->fingerprint());
  tree_.withdraw(Role::draft0, draft->fingerprint());
  EXPECT_EQ(value(directory(), "draft"), "(none)");
}

TEST_F(XattrTable, WeightFile) {
  show(small_model());
  const Node node = below(directory(), "model-00001-of-00002.safetensors");
  EXPECT_THAT(short_names(node), ElementsAre("role", "fingerprint", "rank", "state", "tier", "device_uuid",
                                             "nbytes", "tensors", "digest", "ipc_kind", "ipc_size"));
  EXPECT_EQ(value(node, "rank"), "0");
  EXPECT_EQ(value(node, "tier"), "host");
  EXPECT_EQ(value(node, "device_uuid"), "HOST-0");
  EXPECT_EQ(value(node, "nbytes"), "15064");
  EXPECT_EQ(value(node, "tensors"), "3");
  EXPECT_EQ(value(node, "ipc_kind"), "file");
  EXPECT_EQ(value(node, "ipc_size"), "15064");
  EXPECT_EQ(value(node, "digest").size(), 32u);
}

TEST_F(XattrTable, Tensor) {
  TestFile weights = test_weights("sub/m.safetensors", {"w", "scalar"}, 6);
  weights.tensors[0].shape = {3, 2};
  weights.tensors[1].shape = {};
  show({weights});
  const Node node = tensor("w");
  EXPECT_THAT(short_names(node), ElementsAre("dtype", "shape", "nbytes", "digest", "rank", "file", "offset",
                                             "device_uuid", "ipc_kind"));
  EXPECT_EQ(value(node, "dtype"), "U8");
  EXPECT_EQ(value(node, "shape"), "[3, 2]");
  EXPECT_EQ(value(tensor("scalar"), "shape"), "[]");
  EXPECT_EQ(value(node, "nbytes"), "6");
  EXPECT_EQ(value(node, "file"), "sub/m.safetensors");
  EXPECT_EQ(value(node, "offset"), "64");
  const std::string_view bytes = std::string_view(weights.bytes).substr(64, 6);
  EXPECT_EQ(value(node, "digest"), to_hex(segment_digest(std::as_bytes(std::span(bytes)))));
}

TEST_F(XattrTable, AWeightFileInOneSlab) {
  show_on({TestDevice{.slab_nbytes = 1 << 20}});
  const Node node = below(directory(), kFirstFile);
  EXPECT_THAT(short_names(node),
              ElementsAre("role", "fingerprint", "rank", "state", "tier", "device_uuid", "nbytes", "tensors",
                          "digest", "ipc_kind", "ipc_size", "ipc_handle"));
  EXPECT_EQ(value(node, "tier"), "cuda");
  EXPECT_EQ(value(node, "device_uuid"), TestDevice{}.uuid);
  EXPECT_EQ(value(node, "nbytes"), "15064");
  EXPECT_EQ(value(node, "ipc_kind"), "cuda-vmm");
  EXPECT_EQ(value(node, "ipc_size"), std::to_string(entry_->manifest().slab_nbytes(0)));
  EXPECT_EQ(value(node, "ipc_handle"), "slab=0 socket=/run/wcache/test.sock");
  EXPECT_EQ(refusal(node, "ipc_handle.0"), ENODATA);
  EXPECT_THAT(xattr_names(below(directory(), "config.json"), context()), IsEmpty());
}

TEST_F(XattrTable, SeveralSlabsAreNumbered) {
  show_on({TestDevice{}});
  ASSERT_EQ(entry_->manifest().slab_count(), 2u);
  const Node node = below(directory(), kFirstFile);
  EXPECT_EQ(value(node, "ipc_handle.1"), "slab=1 socket=/run/wcache/test.sock");
  EXPECT_EQ(refusal(node, "ipc_handle"), ENODATA);
  EXPECT_EQ(refusal(node, "ipc_handle.2"), ENODATA);
  EXPECT_EQ(value(node, "ipc_size"),
            std::to_string(entry_->manifest().slab_nbytes(0) + entry_->manifest().slab_nbytes(1)));
}

TEST_F(XattrTable, LegacyHandlesAreTheRawBytes) {
  show_on({TestDevice{.ipc_kind = "cuda-ipc"}});
  const Node node = below(directory(), kFirstFile);
  EXPECT_EQ(value(node, "ipc_kind"), "cuda-ipc");
  EXPECT_EQ(value(node, "ipc_handle.0"), std::string(64, '\1'));
  EXPECT_EQ(value(node, "ipc_handle.1"), std::string(64, '\2'));
}

TEST_F(XattrTable, ATensorOnADeviceTellsItsPlace) {
  show_on({TestDevice{}});
  const Node node = tensor("lm_head.weight");
  EXPECT_THAT(short_names(node),
              ElementsAre("dtype", "shape", "nbytes", "digest", "rank", "file", "offset", "device_uuid",
                          "ipc_kind", "ipc_handle", "ipc_offset", "ipc_slab"));
  const auto row = *entry_->tensor(*entry_->find_tensor("lm_head.weight"));
  ASSERT_EQ(row.slab, 1u);
  EXPECT_EQ(value(node, "ipc_handle"), "slab=1 socket=/run/wcache/test.sock");
  EXPECT_EQ(value(node, "ipc_slab"), "1");
  EXPECT_EQ(value(node, "ipc_offset"), std::to_string(row.slab_offset));
  EXPECT_EQ(value(tensor("model.embed.weight"), "ipc_offset"), "256") << "after the file's header";
}

TEST_F(XattrTable, OtherDevicesWithTheSameFileHaveTheirRanksPrefix) {
  show_on({TestDevice{.slab_nbytes = 1 << 20}, TestDevice{.uuid = "GPU-1", .slab_nbytes = 1 << 20},
           TestDevice{.uuid = "GPU-2"}});
  const Node node = below(directory(), kFirstFile);
  const std::vector<std::string> names = short_names(node);
  EXPECT_THAT(std::vector(names.begin() + 11, names.end()),
              ElementsAre("ipc_handle", "rank1.device_uuid", "rank1.ipc_size", "rank1.ipc_handle",
                          "rank2.device_uuid", "rank2.ipc_size", "rank2.ipc_handle.0", "rank2.ipc_handle.1"));
  EXPECT_EQ(value(node, "rank"), "0");
  EXPECT_EQ(value(node, "rank1.device_uuid"), "GPU-1");
  EXPECT_EQ(value(node, "rank2.ipc_handle.1"), "slab=1 socket=/run/wcache/test.sock");
  EXPECT_EQ(value(directory(), "tensors"), "4") << "each tensor counts once";
  EXPECT_EQ(value(directory(), "nbytes"), std::to_string(entry_->manifest().nbytes()));
  EXPECT_EQ(value(directory(), "tp_size"), "1");
}

TEST_F(XattrTable, HandlesOfLostDaemonsNameWhoHoldsTheMemoryNow) {
  show_on({TestDevice{.slab_nbytes = 1 << 20}, TestDevice{.uuid = "GPU-1", .slab_nbytes = 1 << 20}});
  const Node node = below(directory(), kFirstFile);
  entry_->parts()[1]->lose_daemon();
  EXPECT_EQ(value(node, "ipc_handle"), "slab=0 socket=/run/wcache/test.sock");
  EXPECT_EQ(value(node, "rank1.ipc_handle"), "slab=0 role=target fingerprint=" + entry_->directory_name() +
                                                 " rank=1 socket=/run/wcachefs.sock");
}

TEST_F(XattrTable, OfLostLegacyMemoryThereAreNoHandles) {
  show_on({TestDevice{.ipc_kind = "cuda-ipc"}});
  const Node node = below(directory(), kFirstFile);
  entry_->parts()[0]->lose_daemon();
  EXPECT_EQ(refusal(node, "ipc_handle.0"), ENODATA);
  EXPECT_EQ(refusal(tensor("lm_head.weight"), "ipc_handle"), ENODATA);
  EXPECT_EQ(value(tensor("lm_head.weight"), "ipc_slab"), "1");
  EXPECT_THAT(short_names(node), testing::Not(testing::Contains("ipc_handle.0")));
}

TEST_F(XattrTable, OthersSeeNoHandles) {
  show_on({TestDevice{}, TestDevice{.uuid = "GPU-1"}});
  owner_ = false;
  const Node node = below(directory(), kFirstFile);
  EXPECT_THAT(short_names(node), testing::Not(testing::Contains(testing::HasSubstr("ipc_handle"))));
  EXPECT_THAT(short_names(tensor("lm_head.weight")), testing::Not(testing::Contains("ipc_handle")));
  for (const char* name : {"ipc_handle.0", "ipc_handle.1", "rank1.ipc_handle.0"})
    EXPECT_EQ(refusal(node, name), EACCES) << name;
  EXPECT_EQ(refusal(tensor("lm_head.weight"), "ipc_handle"), EACCES);
  EXPECT_EQ(refusal(node, "ipc_handle"), ENODATA);
  EXPECT_EQ(value(node, "rank1.device_uuid"), "GPU-1");
  EXPECT_EQ(value(tensor("lm_head.weight"), "ipc_slab"), "1");
}

TEST_F(XattrTable, EverythingElseHasNone) {
  show(small_model());
  for (const Node& node :
       {below(directory(), "config.json"), below(directory(), "sub"), below(directory(), ".wcache"),
        *tree_.snapshot()->node(kRoleInode), *tree_.snapshot()->node(kReadmeInode)}) {
    EXPECT_THAT(xattr_names(node, context()), IsEmpty());
    EXPECT_EQ(value(node, "digest"), "(none)");
  }
  for (const char* name : {"user.wcache.", "user.wcache.other", "user.role", "security.selinux", "role", ""})
    EXPECT_EQ(xattr_value(directory(), name, {}).error(), ENODATA) << name;
  EXPECT_FALSE(is_own_xattr("security.capability"));
  EXPECT_FALSE(is_own_xattr("user.other"));
}

TEST_F(XattrTable, ValuesAreOneLine) {
  TestEntryOptions options;
  options.name = "two\nlines\x7f";
  show(small_model(), options);
  EXPECT_EQ(value(directory(), "name"), "two?lines?");
}

}  // namespace
}  // namespace wcache

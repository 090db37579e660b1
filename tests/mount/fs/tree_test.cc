#include <fcntl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>

#include <nlohmann/json.hpp>

#include "core/version.h"
#include "tests/mount/fs/mounted.h"

namespace wcache::test {
namespace {

namespace stdfs = std::filesystem;
using nlohmann::json;

class TreeTest : public MountTest {};

TEST_F(TreeTest, AnEmptyMountHasItsFixedNodes) {
  start();
  if (IsSkipped()) return;
  EXPECT_EQ(list(mount()), (std::set<std::string>{"README", "status.json", "target", "draft0"}));
  EXPECT_EQ(list(mount() + "/target"), std::set<std::string>{"by-name"});
  EXPECT_EQ(list(mount() + "/draft0"), std::set<std::string>{"by-name"});
  EXPECT_NE(read_file(mount() + "/README").find("wcache"), std::string::npos);
  const json status = json::parse(read_file(mount() + "/status.json"));
  EXPECT_EQ(status["mount"]["path"], mount());
  EXPECT_EQ(status["groups"], json::array());
}

TEST_F(TreeTest, AnEntryIsListedAsItsSourceWas) {
  start();
  if (IsSkipped()) return;
  const FakeDaemon daemon(run_dir(), make_test_entry(small_model()));
  const std::string path = entry(daemon);
  std::set<std::string> files;
  for (const auto& row : stdfs::recursive_directory_iterator(path)) {
    const std::string name = stdfs::relative(row.path(), path);
    if (!row.is_directory() && !name.starts_with(".wcache/")) files.insert(name);
  }
  std::set<std::string> expected;
  for (const TestFile& file : small_model()) expected.insert(file.name);
  EXPECT_EQ(files, expected);
  EXPECT_EQ(list(path + "/.wcache"), (std::set<std::string>{"fingerprint.json", "manifest", "manifest.json",
                                                            "status.json", "tensors"}));
  EXPECT_EQ(list(path + "/.wcache/tensors"),
            (std::set<std::string>{"model.embed.weight", "a%2Fb%25c", "%2E", "lm_head.weight"}));
}

TEST_F(TreeTest, ByNameLeadsToTheEntry) {
  start();
  if (IsSkipped()) return;
  TestEntryOptions options;
  options.role = Role::draft0;
  options.name = "My-Model 7B";
  const FakeDaemon daemon(run_dir(), make_test_entry(small_model(), options), Role::draft0);
  entry(daemon, Role::draft0);
  const std::string link = mount() + "/draft0/by-name/My-Model 7B";
  EXPECT_EQ(stdfs::read_symlink(link), "../" + daemon.entry().directory());
  EXPECT_EQ(read_file(link + "/config.json"), small_model()[0].bytes);
  EXPECT_EQ(list(mount() + "/target/by-name"), std::set<std::string>{});
}

TEST_F(TreeTest, GeneratedFilesDescribeTheEntry) {
  start();
  if (IsSkipped()) return;
  const FakeDaemon daemon(run_dir(), make_test_entry(small_model()));
  const std::string meta = entry(daemon) + "/.wcache/";
  for (const char* name : {"fingerprint.json", "manifest.json", "status.json"}) {
    const std::string text = read_file(meta + name);
    EXPECT_FALSE(json::parse(text, nullptr, false).is_discarded()) << name;
    EXPECT_EQ(stdfs::file_size(meta + name), text.size()) << name;
  }
  EXPECT_EQ(json::parse(read_file(meta + "fingerprint.json"))["fingerprint"], daemon.entry().directory());
  const json status = json::parse(read_file(meta + "status.json"));
  EXPECT_EQ(status["state"], "ready");
  EXPECT_EQ(status["source"], "/models/tiny");
  EXPECT_EQ(status["path"], entry(daemon));
  const std::string manifest = read_file(meta + "manifest");
  EXPECT_EQ(manifest.size(), daemon.entry().manifest_nbytes);
  const std::vector<std::byte> copy(reinterpret_cast<const std::byte*>(manifest.data()),
                                    reinterpret_cast<const std::byte*>(manifest.data() + manifest.size()));
  Result<ManifestView> view = ManifestView::open(copy);
  ASSERT_TRUE(view) << view.error().message;
  EXPECT_EQ(view->fingerprint(), daemon.entry().fingerprint);
}

TEST_F(TreeTest, AttributesOfEachKindOfNode) {
  start();
  if (IsSkipped()) return;
  const FakeDaemon daemon(run_dir(), make_test_entry(small_model()));
  const std::string path = entry(daemon);
  const auto value = [](const std::string& node, const char* name) {
    const Xattr got = get_xattr(node, std::string("user.wcache.") + name);
    return got.errnum == 0 ? got.value : "errno " + std::to_string(got.errnum);
  };
  EXPECT_EQ(value(mount(), "version"), version());
  EXPECT_EQ(value(path, "fingerprint"), daemon.entry().directory());
  EXPECT_EQ(value(path, "state"), "ready");
  EXPECT_EQ(value(path, "holders"), "0");
  EXPECT_EQ(value(path, "tensors"), "4");
  const std::string weights = path + "/model-00002-of-00002.safetensors";
  EXPECT_EQ(value(weights, "nbytes"), std::to_string(read_file(weights).size()));
  EXPECT_EQ(value(weights, "ipc_kind"), "file");
  EXPECT_EQ(value(weights, "digest").size(), 32u);
  EXPECT_EQ(value(path + "/.wcache/tensors/lm_head.weight", "shape"), "[100001]");
  EXPECT_EQ(value(path + "/.wcache/tensors/lm_head.weight", "file"), "model-00002-of-00002.safetensors");

  EXPECT_EQ(get_xattr(path, "user.wcache.quantization").errnum, ENODATA);
  EXPECT_EQ(get_xattr(path, "user.other").errnum, ENODATA);
  EXPECT_EQ(get_xattr(weights, "security.capability").errnum, ENODATA);
  EXPECT_EQ(get_xattr(weights, "system.posix_acl_access").errnum, ENODATA);
  EXPECT_EQ(get_xattr(path + "/config.json", "user.wcache.digest").errnum, ENODATA);
  char small[4];
  EXPECT_EQ(getxattr(weights.c_str(), "user.wcache.digest", nullptr, 0), 32);
  EXPECT_EQ(getxattr(weights.c_str(), "user.wcache.digest", small, sizeof small), -1);
  EXPECT_EQ(errno, ERANGE);
  EXPECT_EQ(listxattr(weights.c_str(), small, sizeof small), -1);
  EXPECT_EQ(errno, ERANGE);
  EXPECT_EQ(listxattr((path + "/config.json").c_str(), nullptr, 0), 0);
  std::string names(static_cast<std::size_t>(listxattr(weights.c_str(), nullptr, 0)), '\0');
  ASSERT_EQ(listxattr(weights.c_str(), names.data(), names.size()), static_cast<ssize_t>(names.size()));
  EXPECT_NE(names.find("user.wcache.digest"), std::string::npos);
}

TEST_F(TreeTest, NothingCanBeChanged) {
  start();
  if (IsSkipped()) return;
  const FakeDaemon daemon(run_dir(), make_test_entry(small_model()));
  const std::string path = entry(daemon);
  const std::string file = path + "/config.json";
  const auto refused = [](long result) { return result == -1 ? errno : 0; };
  EXPECT_EQ(refused(open(file.c_str(), O_WRONLY)), EROFS);
  EXPECT_EQ(refused(open(file.c_str(), O_RDWR)), EROFS);
  EXPECT_EQ(refused(open(file.c_str(), O_RDONLY | O_TRUNC)), EROFS);
  EXPECT_EQ(refused(open((path + "/new").c_str(), O_CREAT | O_WRONLY, 0600)), EROFS);
  EXPECT_EQ(refused(mkdir((path + "/new").c_str(), 0700)), EROFS);
  EXPECT_EQ(refused(unlink(file.c_str())), EROFS);
  EXPECT_EQ(refused(rename(file.c_str(), (path + "/new").c_str())), EROFS);
  EXPECT_EQ(refused(chmod(file.c_str(), 0600)), EROFS);
  EXPECT_EQ(refused(truncate(file.c_str(), 0)), EROFS);
  EXPECT_EQ(refused(symlink("x", (path + "/new").c_str())), EROFS);
  EXPECT_EQ(refused(setxattr(file.c_str(), "user.wcache.digest", "x", 1, 0)), EROFS);
  EXPECT_EQ(refused(removexattr(file.c_str(), "user.wcache.digest")), EROFS);
  EXPECT_EQ(refused(access(file.c_str(), W_OK)), EROFS);
  EXPECT_EQ(access(file.c_str(), R_OK), 0);
}

TEST_F(TreeTest, TwoHundredThousandTensors) {
  start();
  if (IsSkipped()) return;
  constexpr std::size_t kCount = 200'000;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < kCount; ++i) names.push_back("model.layers." + std::to_string(i) + ".weight");
  const TestFile weights = test_weights("model.safetensors", names, 8);
  const std::size_t before = open_descriptors(pid());
  const FakeDaemon daemon(run_dir(), make_test_entry({weights}));
  const std::string tensors = entry(daemon) + "/.wcache/tensors";
  EXPECT_EQ(list(tensors).size(), kCount);
  EXPECT_EQ(list(tensors).size(), kCount);  // from the kernel's cache
  for (const std::size_t i : {std::size_t{0}, kCount / 2, kCount - 1})
    EXPECT_EQ(read_file(tensors + "/" + names[i]), weights.bytes.substr(weights.tensors[i].offset, 8));
  EXPECT_EQ(get_xattr(tensors + "/" + names[7], "user.wcache.offset").value,
            std::to_string(weights.tensors[7].offset));
  EXPECT_FALSE(exists(tensors + "/model.layers.200000.weight"));
  EXPECT_LE(open_descriptors(pid()), before + 8);
}

}  // namespace
}  // namespace wcache::test

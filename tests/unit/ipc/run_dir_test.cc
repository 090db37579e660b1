#include "ipc/run_dir.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "temporary_directory.h"

namespace wcache {
namespace {

RunDir::Environment environment(std::map<std::string, std::string> values) {
  return [values = std::move(values)](const char* name) -> std::optional<std::string> {
    const auto found = values.find(name);
    if (found == values.end()) return std::nullopt;
    return found->second;
  };
}

TEST(RunDir, DefaultPath) {
  EXPECT_EQ(RunDir::default_path(0, environment({})).value(), "/run/wcache");
  EXPECT_EQ(RunDir::default_path(0, environment({{"XDG_RUNTIME_DIR", "/x"}})).value(), "/run/wcache");
  EXPECT_EQ(RunDir::default_path(7, environment({{"XDG_RUNTIME_DIR", "/x"}})).value(), "/x/wcache");
  EXPECT_EQ(
      RunDir::default_path(7, environment({{"WCACHE_RUN_DIR", "/r"}, {"XDG_RUNTIME_DIR", "/x"}})).value(),
      "/r");
  EXPECT_EQ(RunDir::default_path(0, environment({{"WCACHE_RUN_DIR", "/r"}})).value(), "/r");
  const auto none = RunDir::default_path(7, environment({}));
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().reason, Reason::invalid);
  EXPECT_NE(none.error().hint.find("--run-dir"), std::string::npos);
}

TEST(RunDir, CreatesForOneUserOnly) {
  const TemporaryDirectory dir;
  EXPECT_EQ(RunDir::open(dir.file("run")).error().reason, Reason::not_found);
  const auto run = RunDir::create(dir.file("run") + "/");
  ASSERT_TRUE(run);
  EXPECT_EQ(run->path(), dir.file("run"));
  struct stat st {};
  ASSERT_EQ(stat(run->path().c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 07777, 0700u);
  EXPECT_TRUE(RunDir::create(dir.file("run")));
  EXPECT_EQ(RunDir::create(dir.file("absent/run")).error().reason, Reason::not_found);
}

TEST(RunDir, RefusesWhatOthersCouldReach) {
  const TemporaryDirectory dir;
  std::filesystem::create_directory(dir.file("open"));
  chmod(dir.file("open").c_str(), 0750);
  EXPECT_EQ(RunDir::open(dir.file("open")).error().reason, Reason::denied);
  std::filesystem::create_directory(dir.file("real"));
  chmod(dir.file("real").c_str(), 0700);
  std::filesystem::create_symlink(dir.file("real"), dir.file("link"));
  EXPECT_TRUE(RunDir::open(dir.file("real")));
  EXPECT_EQ(RunDir::open(dir.file("link")).error().reason, Reason::denied);
  EXPECT_EQ(RunDir::create(dir.file("link")).error().reason, Reason::denied);
  std::ofstream(dir.file("file"));
  EXPECT_EQ(RunDir::create(dir.file("file")).error().reason, Reason::denied);
}

TEST(RunDir, RefusesAnotherUsersDirectory) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to give a directory away";
  const TemporaryDirectory dir;
  std::filesystem::create_directory(dir.file("theirs"));
  ASSERT_EQ(chmod(dir.file("theirs").c_str(), 0700), 0);
  ASSERT_EQ(chown(dir.file("theirs").c_str(), 65534, 65534), 0);
  EXPECT_EQ(RunDir::open(dir.file("theirs")).error().reason, Reason::denied);
}

TEST(RunDir, NamesSocketsAndReadsTheNamesBack) {
  const TemporaryDirectory dir;
  const RunDir run = *RunDir::open(dir.path());
  const Fingerprint fingerprint{Digest{0x0123456789abcdef, 1}};
  const std::string target = run.rank_socket(Role::target, fingerprint, "GPU-1-2");
  const std::string draft = run.rank_socket(Role::draft0, fingerprint, "HOST-0");
  EXPECT_EQ(target, dir.file("wcache_0123456789abcdef_GPU-1-2.sock"));
  EXPECT_EQ(draft, dir.file("wcache_0123456789abcdef_HOST-0_draft0.sock"));
  for (const std::string& path :
       {target, draft, run.launcher_socket(12), run.mount_socket(), dir.file("README"), target + ".lock",
        dir.file(".cache_0123456789abcdef_HOST-0.sock"), dir.file("wcache_0123_HOST-0.sock"),
        dir.file("launcher_.sock")})
    std::ofstream{path};
  using Kind = RunDir::SocketKind;
  const std::vector<RunDir::Socket> expected{
      {Kind::launcher, dir.file("launcher_12.sock"), Role::target, "", ""},
      {Kind::rank, target, Role::target, "0123456789abcdef", "GPU-1-2"},
      {Kind::rank, draft, Role::draft0, "0123456789abcdef", "HOST-0"},
      {Kind::mount, dir.file("wcachefs.sock"), Role::target, "", ""}};
  EXPECT_EQ(run.sockets().value(), expected);
}

TEST(RunDir, ChecksTheLongestNameOfAnyRole) {
  const TemporaryDirectory dir;
  // "/wcache_" + 16 + "_HOST-0" + "_draft0" + ".sock" are 43 bytes.
  const std::size_t room = kMaxSocketPath - 43;
  ASSERT_LT(dir.path().size() + 1, room);
  const std::string fits = dir.file(std::string(room - dir.path().size() - 1, 'r'));
  const RunDir good = *RunDir::create(fits);
  EXPECT_EQ(good.rank_socket(Role::draft0, {}, "HOST-0").size(), kMaxSocketPath);
  EXPECT_TRUE(good.check_socket_length("HOST-0"));
  const Status bad = RunDir::create(fits + "r")->check_socket_length("HOST-0");
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().reason, Reason::invalid);
  EXPECT_NE(bad.error().message.find("108"), std::string::npos);
  EXPECT_NE(bad.error().message.find("107"), std::string::npos);
}

}  // namespace
}  // namespace wcache

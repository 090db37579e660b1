#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/mount/fs/mounted.h"

namespace wcache::test {
namespace {

class LifeTest : public MountTest {};

TEST_F(LifeTest, ASignalTakesTheMountDown) {
  start();
  if (IsSkipped()) return;
  EXPECT_EQ(mounts_at(mount()), 1u);
  EXPECT_EQ(end(SIGTERM), 0);
  EXPECT_EQ(mounts_at(mount()), 0u);
  EXPECT_FALSE(exists(run_dir().mount_socket()));
  EXPECT_EQ(list(mount()).size(), 0u);
}

TEST_F(LifeTest, SomebodyElseMayUnmount) {
  start();
  if (IsSkipped()) return;
  ASSERT_EQ(umount2(mount().c_str(), 0), 0) << errno;
  EXPECT_EQ(end(0), 0);
}

TEST_F(LifeTest, ItStopsWhileAFileIsOpen) {
  start();
  if (IsSkipped()) return;
  const FakeDaemon daemon(run_dir(), make_test_entry(small_model()));
  const TestFile weights = small_model()[4];
  Result<Fd> fd = open_file((entry(daemon) + "/" + weights.name).c_str(), O_RDONLY);
  ASSERT_TRUE(fd) << fd.error().message;
  Result<Fd> cold = open_file((entry(daemon) + "/.wcache/tensors/lm_head.weight").c_str(), O_RDONLY);
  ASSERT_TRUE(cold) << cold.error().message;
  const bool passthrough = status().passthrough;
  EXPECT_EQ(end(SIGINT), 0);
  EXPECT_EQ(mounts_at(mount()), 0u);
  if (!passthrough) GTEST_SKIP() << "old descriptors outlive the mount with passthrough only";
  std::string got(weights.bytes.size(), '\0');
  ASSERT_TRUE(read_exact(fd->get(), std::as_writable_bytes(std::span(got)), 0, "an old descriptor"));
  EXPECT_TRUE(got == weights.bytes);
  struct stat st {};
  EXPECT_EQ(fstat(fd->get(), &st), 0);
  EXPECT_EQ(close(fd->release()), 0);
}

TEST_F(LifeTest, KilledWithAMappingOpenAndStartedAgain) {
  start();
  if (IsSkipped()) return;
  const TestFile weights = test_weights("model.safetensors", {"a"}, 4 << 20);
  const FakeDaemon daemon(run_dir(), make_test_entry({weights}));
  const std::string path = entry(daemon) + "/model.safetensors";
  const bool passthrough = status().passthrough;
  Result<Fd> fd = open_file(path.c_str(), O_RDONLY);
  ASSERT_TRUE(fd) << fd.error().message;
  Result<Mapping> mapping = Mapping::map(fd->get(), weights.bytes.size(), PROT_READ, MAP_SHARED, "weights");
  ASSERT_TRUE(mapping) << mapping.error().message;
  end(SIGKILL);
  EXPECT_EQ(open(mount().c_str(), O_RDONLY | O_DIRECTORY), -1);
  EXPECT_EQ(errno, ENOTCONN);
  start();
  EXPECT_EQ(mounts_at(mount()), 1u);
  EXPECT_TRUE(read_file(entry(daemon) + "/model.safetensors") == weights.bytes);
  if (!passthrough) GTEST_SKIP() << "mappings outlive the mount with passthrough only";
  const auto* text = reinterpret_cast<const char*>(mapping->data());
  EXPECT_TRUE(std::string_view(text, mapping->size()) == weights.bytes);
}

TEST_F(LifeTest, SeveralDeadMountsOnOnePath) {
  start();
  if (IsSkipped()) return;
  end(SIGKILL);
  // A second dead one on top, as an older tool would leave it.
  ASSERT_EQ(::mount(mount().c_str(), mount().c_str(), nullptr, MS_BIND, nullptr) == 0 ? 0 : errno, 0);
  EXPECT_EQ(mounts_at(mount()), 2u);
  start();
  EXPECT_EQ(mounts_at(mount()), 1u);
  EXPECT_EQ(list(mount()).size(), 4u);
}

TEST_F(LifeTest, RefusesWhatIsNotItsOwn) {
  const std::string options = "run_dir=" + run_dir().path();
  std::ofstream(mount() + "/precious") << "data";
  Ended refused = run_to_end({mount(), "-f", "-o", options});
  EXPECT_EQ(refused.status, 2);
  EXPECT_NE(refused.error.find("not empty"), std::string::npos) << refused.error;
  std::filesystem::remove(mount() + "/precious");

  refused = run_to_end({mount() + "/absent", "-f", "-o", options});
  EXPECT_EQ(refused.status, 3);
  EXPECT_NE(refused.error.find("absent"), std::string::npos) << refused.error;

  if (::mount("none", mount().c_str(), "tmpfs", 0, nullptr) != 0) GTEST_SKIP() << "cannot mount a tmpfs";
  refused = run_to_end({mount(), "-f", "-o", options});
  EXPECT_EQ(refused.status, 2);
  EXPECT_NE(refused.error.find("something else is mounted"), std::string::npos) << refused.error;
}

TEST_F(LifeTest, OneMountForARunDirectory) {
  start();
  if (IsSkipped()) return;
  const Ended refused = run_to_end({mount(), "-f", "-o", "run_dir=" + run_dir().path()});
  EXPECT_EQ(refused.status, 6);
  EXPECT_NE(refused.error.find(std::to_string(pid())), std::string::npos) << refused.error;
  EXPECT_EQ(list(mount()).size(), 4u);
}

TEST_F(LifeTest, InTheBackgroundItReturnsOnceMounted) {
  if (access("/dev/fuse", R_OK | W_OK) != 0) GTEST_SKIP() << "no access to /dev/fuse";
  const Ended ended = run_to_end({"wcache", mount(), "-o", "rw,nosuid,run_dir=" + run_dir().path()});
  EXPECT_EQ(ended.status, 0) << ended.error;
  EXPECT_EQ(mounts_at(mount()), 1u);
  EXPECT_EQ(list(mount()).size(), 4u);
  const pid_t server = status().pid;
  ASSERT_GT(server, 0);
  ASSERT_EQ(kill(server, SIGTERM), 0);
  EXPECT_TRUE(eventually([&] { return mounts_at(mount()) == 0 && !exists(run_dir().mount_socket()); }));

  const Ended again = run_to_end({"wcache", mount() + "/absent", "-o", "run_dir=" + run_dir().path()});
  EXPECT_EQ(again.status, 3);
  EXPECT_NE(again.error.find("absent"), std::string::npos) << again.error;
}

TEST_F(LifeTest, AUserWithoutRightsMountsThroughFusermount) {
  as_nobody([&] {
    start();
    EXPECT_FALSE(status().passthrough);
    EXPECT_NE(status().reason.find("CAP_SYS_ADMIN"), std::string::npos) << status().reason;
    TestEntryOptions options;
    options.memfd = true;
    FakeDaemon daemon(run_dir(), make_test_entry(small_model(), options));
    const std::string path = entry(daemon);
    for (const TestFile& file : small_model())
      EXPECT_TRUE(read_file(path + "/" + file.name) == file.bytes) << file.name;
    const TestFile weights = small_model()[4];
    Result<Fd> fd = open_file((path + "/" + weights.name).c_str(), O_RDONLY);
    ASSERT_TRUE(fd) << fd.error().message;
    Result<Mapping> mapping = Mapping::map(fd->get(), weights.bytes.size(), PROT_READ, MAP_SHARED, "weights");
    ASSERT_TRUE(mapping) << mapping.error().message;
    const auto* text = reinterpret_cast<const char*>(mapping->data());
    EXPECT_TRUE(std::string_view(text, mapping->size()) == weights.bytes);
    EXPECT_FALSE(daemon.withdraw(false).withdrawn);
    mapping->reset();
    fd->reset();
    EXPECT_TRUE(daemon.withdraw(false).withdrawn);
    EXPECT_FALSE(exists(path));

    // Killed and started again, and stopped: everything through fusermount3.
    end(SIGKILL);
    EXPECT_EQ(mounts_at(mount()), 1u);
    start();
    EXPECT_EQ(mounts_at(mount()), 1u);
    EXPECT_EQ(list(mount()).size(), 4u);
    EXPECT_EQ(end(SIGTERM), 0);
    EXPECT_EQ(mounts_at(mount()), 0u);
  });
}

TEST_F(LifeTest, MountUnderstandsAnFstabLine) {
  if (access("/sbin/mount.fuse", X_OK) != 0)
    GTEST_SKIP() << "mount(8) has no helper for FUSE here (package fuse3)";
  // The helper looks for wcachefs in its own path only.
  if (::mount("none", "/usr/local/bin", "tmpfs", 0, nullptr) != 0) GTEST_SKIP() << "cannot mount a tmpfs";
  std::filesystem::create_symlink(WCACHEFS, "/usr/local/bin/wcachefs");
  const std::string fstab = run_dir().path() + "/fstab";
  std::ofstream(fstab) << "wcache " << mount()
                       << " fuse.wcachefs noauto,nofail,allow_other,run_dir=" << run_dir().path() << " 0 0\n";
  const int mounted = std::system(("mount -T " + fstab + " " + mount()).c_str());
  EXPECT_EQ(mounted, 0);
  EXPECT_EQ(list(mount()).size(), 4u);
  EXPECT_EQ(status().path, mount());
  EXPECT_EQ(std::system(("umount " + mount()).c_str()), 0);
  EXPECT_TRUE(eventually([&] { return !exists(run_dir().mount_socket()); }));
  umount2("/usr/local/bin", MNT_DETACH);
}

TEST_F(LifeTest, PathsWithOddCharacters) {
  const std::string odd = mount() + "/a b,c=d\\e\n\xC3\xA9";
  std::filesystem::create_directory(odd);
  if (access("/dev/fuse", R_OK | W_OK) != 0) GTEST_SKIP() << "no access to /dev/fuse";
  const Ended ended = run_to_end({odd, "-o", "run_dir=" + run_dir().path()});
  EXPECT_EQ(ended.status, 0) << ended.error;
  EXPECT_EQ(list(odd).size(), 4u);
  EXPECT_EQ(status().path, odd);
  const pid_t server = status().pid;
  ASSERT_EQ(kill(server, SIGTERM), 0);
  EXPECT_TRUE(eventually([&] { return mounts_at(odd) == 0 && !exists(run_dir().mount_socket()); }));
}

}  // namespace
}  // namespace wcache::test

// Entries whose weights are on a device, through a real mount.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>

#include "ipc/client.h"
#include "tests/mount/fs/mounted.h"

namespace wcache::test {
namespace {

constexpr std::chrono::seconds kWait{10};

TestEntry entry_on_device(const std::string& kind = "cuda-vmm", std::uint32_t rank = 0,
                          std::uint32_t ranks = 1) {
  TestEntryOptions options;
  options.device =
      TestDevice{.ipc_kind = kind, .uuid = "GPU-" + std::to_string(rank), .slab_nbytes = 2 << 20};
  options.rank = rank;
  options.node_ranks = ranks;
  return make_test_entry({{"config.json", "{}\n"},
                          test_weights("model.safetensors", {"a", "b", "c"}, 3'000'017),
                          test_weights("small.safetensors", {"d"}, 100)},
                         options);
}

class DeviceTest : public MountTest {
 protected:
  void TearDown() override {
    daemon_.reset();
    MountTest::TearDown();
  }
  /// A mount of one entry on a device.
  void start_with(const std::string& kind = "cuda-vmm", const std::string& options = {}) {
    start(options);
    if (IsSkipped()) return;
    daemon_ = std::make_unique<FakeDaemon>(run_dir(), entry_on_device(kind), Role::target, "GPU-0");
    path_ = entry(*daemon_);
  }
  void kill_daemon() {
    daemon_.reset();
    EXPECT_TRUE(eventually([&] { return get_xattr(path_, "user.wcache.state").value == "orphaned"; }));
  }
  std::string weights() const { return path_ + "/model.safetensors"; }
  static std::string bytes() { return test_weights("model.safetensors", {"a", "b", "c"}, 3'000'017).bytes; }
  static int run(const std::string& command) { return std::system(command.c_str()); }

  std::unique_ptr<FakeDaemon> daemon_;
  std::string path_;
};

/// The errno of reading a byte of `path`; 0 when there is one.
int read_errno(const std::string& path) {
  const Result<Fd> fd = open_file(path.c_str(), O_RDONLY);
  if (!fd) return fd.error().errnum;
  char byte = 0;
  return pread(fd->get(), &byte, 1, 0) == 1 ? 0 : errno;
}

TEST_F(DeviceTest, FilesReadRightInEveryWay) {
  start_with();
  if (IsSkipped()) return;
  const std::string due = bytes();
  EXPECT_TRUE(read_file(weights()) == due);
  EXPECT_TRUE(read_file(path_ + "/small.safetensors") == test_weights("small.safetensors", {"d"}, 100).bytes);
  EXPECT_TRUE(read_file(path_ + "/.wcache/tensors/b") == due.substr(64 + 3'000'017, 3'000'017));

  const Result<Fd> fd = open_file(weights().c_str(), O_RDONLY);
  ASSERT_TRUE(fd) << fd.error().message;
  const Result<Mapping> mapping = Mapping::map(fd->get(), due.size(), PROT_READ, MAP_PRIVATE, "weights");
  ASSERT_TRUE(mapping) << mapping.error().message;
  EXPECT_TRUE(std::string_view(reinterpret_cast<const char*>(mapping->data()), mapping->size()) == due);

  const std::string copy = run_dir().file("copy");
  EXPECT_EQ(run("cp " + weights() + " " + copy + " && cmp " + weights() + " " + copy), 0);
  EXPECT_TRUE(read_file(copy) == due);
}

TEST_F(DeviceTest, SeveralReadersAtOnce) {
  start_with();
  if (IsSkipped()) return;
  const std::string due = bytes();
  std::vector<std::thread> readers;
  std::array<bool, 8> right{};
  for (std::size_t i = 0; i < right.size(); ++i)
    readers.emplace_back([&, i] {
      const std::string copy = run_dir().file("copy" + std::to_string(i));
      const std::string block = std::to_string(10'000 + 90'001 * i);
      right[i] = run("dd if=" + weights() + " of=" + copy + " bs=" + block + " status=none") == 0 &&
                 read_file(copy) == due;
    });
  for (std::thread& reader : readers) reader.join();
  for (const bool each : right) EXPECT_TRUE(each);
}

TEST_F(DeviceTest, WithoutDirectMappingsToo) {
  start_with("cuda-vmm", "no_passthrough");
  if (IsSkipped()) return;
  EXPECT_TRUE(read_file(weights()) == bytes());
}

TEST_F(DeviceTest, OnlyTheOwnerGetsHandles) {
  // Others can get as far as the file where the mount lets them and the directories above do.
  start_with("cuda-vmm", "allow_other");
  if (IsSkipped()) return;
  EXPECT_EQ(get_xattr(weights(), "user.wcache.ipc_kind").value, "cuda-vmm");
  EXPECT_EQ(get_xattr(weights(), "user.wcache.ipc_handle.1").value, "slab=1 socket=" + daemon_->socket());
  if (getuid() != 0) GTEST_SKIP() << "needs root to become somebody else";
  std::filesystem::permissions(std::filesystem::path(mount()).parent_path(), std::filesystem::perms(0755));
  fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    if (setgid(65534) != 0 || setuid(65534) != 0) _exit(1);
    std::array<char, 4096> buffer{};
    const ssize_t n = listxattr(weights().c_str(), buffer.data(), buffer.size());
    EXPECT_GT(n, 0) << errno;
    const std::string_view names(buffer.data(), static_cast<std::size_t>(std::max<ssize_t>(n, 0)));
    EXPECT_NE(names.find("ipc_size"), std::string_view::npos);
    EXPECT_EQ(names.find("ipc_handle"), std::string_view::npos);
    EXPECT_EQ(get_xattr(weights(), "user.wcache.ipc_handle.1").errnum, EACCES);
    EXPECT_EQ(get_xattr(path_ + "/.wcache/tensors/a", "user.wcache.ipc_handle").errnum, EACCES);
    EXPECT_EQ(get_xattr(weights(), "user.wcache.tier").value, "cuda");
    EXPECT_EQ(read_errno(weights()), 0);
    fflush(nullptr);
    _exit(HasFailure() ? 1 : 0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0) << "see the failures above";
}

TEST_F(DeviceTest, AHandleIsRedeemedForItsSlab) {
  start_with();
  if (IsSkipped()) return;
  kill_daemon();
  const TestEntry made = entry_on_device();
  const std::string handle = get_xattr(path_ + "/.wcache/tensors/a", "user.wcache.ipc_handle").value;
  const std::string slab = get_xattr(path_ + "/.wcache/tensors/a", "user.wcache.ipc_slab").value;
  EXPECT_EQ(handle, "slab=" + slab + " role=target fingerprint=" + made.directory() +
                        " rank=0 socket=" + run_dir().mount_socket());
  Result<Client> client =
      Client::connect(run_dir().mount_socket(), Purpose::client, "test", deadline_in(kWait));
  ASSERT_TRUE(client) << client.error().message;
  const auto got = client->slab({static_cast<std::uint32_t>(std::stoul(slab)), "target", made.directory(), 0},
                                deadline_in(kWait));
  ASSERT_TRUE(got) << got.error().message;
  const Result<Mapping> memory = Mapping::map(got->fd.get(), got->nbytes, PROT_READ, MAP_SHARED, "a slab");
  ASSERT_TRUE(memory) << memory.error().message;
  const auto offset = std::stoul(get_xattr(path_ + "/.wcache/tensors/a", "user.wcache.ipc_offset").value);
  EXPECT_TRUE(std::string_view(reinterpret_cast<const char*>(memory->data()) + offset, 3'000'017) ==
              bytes().substr(64, 3'000'017));

  const auto attachment = client->attach(deadline_in(kWait), {"target", made.directory(), 0});
  ASSERT_TRUE(attachment) << attachment.error().message;
  EXPECT_EQ(attachment->slabs.size(), made.slabs.size());
  EXPECT_EQ(attachment->images.size(), 1u);
  EXPECT_EQ(attachment->instance, made.instance);
}

TEST_F(DeviceTest, ADeadDaemonCostsTheWeightFilesAlone) {
  start_with();
  if (IsSkipped()) return;
  const Result<Fd> old = open_file(weights().c_str(), O_RDONLY);
  ASSERT_TRUE(old);
  kill_daemon();
  char byte = 0;
  EXPECT_EQ(pread(old->get(), &byte, 1, 0), -1);
  EXPECT_EQ(errno, EIO);
  EXPECT_EQ(read_errno(weights()), EIO);
  EXPECT_EQ(read_errno(path_ + "/.wcache/tensors/a"), EIO);
  EXPECT_EQ(read_file(path_ + "/config.json"), "{}\n");
  EXPECT_EQ(whole_status().ranks.at(0).ipc_kind, "cuda-vmm");

  daemon_ = std::make_unique<FakeDaemon>(run_dir(), entry_on_device(), Role::target, "GPU-0");
  EXPECT_TRUE(eventually([&] { return get_xattr(path_, "user.wcache.state").value == "ready"; }));
  EXPECT_TRUE(read_file(weights()) == bytes());
  EXPECT_EQ(get_xattr(weights(), "user.wcache.ipc_handle.0").value, "slab=0 socket=" + daemon_->socket());
}

TEST_F(DeviceTest, ADaemonThatDiesUnderAReaderIsEio) {
  start_with();
  if (IsSkipped()) return;
  daemon_->hold_copies(true);
  std::vector<std::thread> readers;
  std::array<int, 6> errnos{};
  for (int& each : errnos) readers.emplace_back([&] { each = read_errno(weights()); });
  EXPECT_TRUE(eventually([&] { return daemon_->copies() >= 4; }));
  EXPECT_EQ(read_file(path_ + "/config.json"), "{}\n");
  kill_daemon();
  for (std::thread& reader : readers) reader.join();
  for (const int each : errnos) EXPECT_EQ(each, EIO);
}

TEST_F(DeviceTest, TheMountGoesWhileReadersWait) {
  start_with();
  if (IsSkipped()) return;
  daemon_->hold_copies(true);
  std::array<int, 6> errnos{};
  std::vector<std::thread> readers;
  for (int& each : errnos) readers.emplace_back([&] { each = read_errno(weights()); });
  EXPECT_TRUE(eventually([&] { return daemon_->copies() >= 4; }));
  EXPECT_EQ(end(SIGTERM), 0);
  for (std::thread& reader : readers) reader.join();
  for (const int each : errnos) EXPECT_NE(each, 0);
  EXPECT_EQ(mounts_at(mount()), 0u);
}

TEST_F(DeviceTest, LegacyHandlesAreTheirBytesUntilTheDaemonDies) {
  start_with("cuda-ipc");
  if (IsSkipped()) return;
  EXPECT_EQ(get_xattr(weights(), "user.wcache.ipc_handle.0").value, std::string(64, '\1'));
  EXPECT_TRUE(read_file(weights()) == bytes());
  const std::string fingerprint = daemon_->entry().directory();
  kill_daemon();
  EXPECT_EQ(get_xattr(weights(), "user.wcache.ipc_handle.0").errnum, ENODATA);
  Result<Client> client =
      Client::connect(run_dir().mount_socket(), Purpose::client, "test", deadline_in(kWait));
  ASSERT_TRUE(client);
  EXPECT_EQ(client->attach(deadline_in(kWait), {"target", fingerprint, 0}).error().reason,
            Reason::not_running);
}

TEST_F(DeviceTest, TheSameFileOnTwoDevicesIsShownOnce) {
  start();
  if (IsSkipped()) return;
  FakeDaemon first(run_dir(), entry_on_device("cuda-vmm", 0, 2), Role::target, "GPU-0");
  FakeDaemon second(run_dir(), entry_on_device("cuda-vmm", 1, 2), Role::target, "GPU-1");
  const std::string path = entry(first);
  EXPECT_EQ(list(path),
            (std::set<std::string>{".wcache", "config.json", "model.safetensors", "small.safetensors"}));
  EXPECT_EQ(list(path + "/.wcache/tensors"), (std::set<std::string>{"a", "b", "c", "d"}));
  EXPECT_EQ(get_xattr(path, "user.wcache.tensors").value, "4");
  const std::string file = path + "/model.safetensors";
  EXPECT_EQ(get_xattr(file, "user.wcache.device_uuid").value, "GPU-0");
  EXPECT_EQ(get_xattr(file, "user.wcache.rank1.device_uuid").value, "GPU-1");
  EXPECT_EQ(get_xattr(file, "user.wcache.rank1.ipc_handle.0").value, "slab=0 socket=" + second.socket());
  EXPECT_TRUE(read_file(file) == bytes());
}

TEST_F(DeviceTest, NothingIsLeftOpenByEntriesThatCameAndWent) {
  start();
  if (IsSkipped()) return;
  const auto round = [&] {
    FakeDaemon daemon(run_dir(), entry_on_device(), Role::target, "GPU-0");
    EXPECT_TRUE(read_file(entry(daemon) + "/model.safetensors") == bytes());
    EXPECT_TRUE(daemon.withdraw(true).withdrawn);
  };
  const auto threads = [&] { return list("/proc/" + std::to_string(pid()) + "/task").size(); };
  round();
  EXPECT_TRUE(eventually([&] { return !exists(mount() + "/target/by-name/tiny"); }));
  std::size_t descriptors = open_descriptors(pid()), tasks = threads();
  EXPECT_TRUE(eventually([&] {
    const std::size_t now = open_descriptors(pid()), now_tasks = threads();
    return std::exchange(descriptors, now) == now && std::exchange(tasks, now_tasks) == now_tasks;
  }));
  for (int i = 0; i < 10; ++i) round();
  EXPECT_TRUE(eventually([&] { return open_descriptors(pid()) <= descriptors; })) << descriptors;
  // libfuse keeps idle workers of its own, at most 10.
  EXPECT_TRUE(eventually([&] { return threads() <= tasks + 10; })) << tasks << " " << threads();
}

}  // namespace
}  // namespace wcache::test

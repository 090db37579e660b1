#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "core/fd.h"
#include "core/manifest.h"
#include "core/sealed.h"
#include "ipc/client.h"
#include "ipc/run_dir.h"
#include "tests/mount/daemon/wcached_process.h"
#include "tests/unit/daemon/tiny_checkpoint.h"
#include "tests/unit/ipc/temporary_directory.h"

namespace wcache {
namespace {

using namespace std::chrono_literals;

class WcachedTest : public testing::Test {
 protected:
  WcachedTest() {
    make_tiny_checkpoint(model_);
    std::filesystem::create_directory(run_);
    chmod(run_.c_str(), 0700);
    setenv("WCACHE_CACHE_DIR", dir_.file("cache").c_str(), 1);
  }

  std::vector<std::string> arguments(std::vector<std::string> more = {}) const {
    std::vector<std::string> words{"--model", model_, "--run-dir", run_};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  Result<Client> connect(const RankStatus& status, Purpose purpose = Purpose::client) const {
    return Client::connect(status.socket, purpose, "wcached_test", deadline_in(5s));
  }

  std::set<std::string> left_in_run_dir() const {
    std::set<std::string> names;
    for (const auto& item : std::filesystem::directory_iterator(run_)) names.insert(item.path().filename());
    return names;
  }

  std::set<std::string> left_but_logs() const {
    std::set<std::string> names = left_in_run_dir();
    std::erase_if(names, [](const std::string& name) { return name.ends_with(".log"); });
    return names;
  }

  Result<EvictReply> evict(const RankStatus& status) const {
    auto client = connect(status, Purpose::command);
    if (!client) return fail(client.error());
    return client->request<EvictReply>(EvictRequest{}, deadline_in(15s));
  }

  TemporaryDirectory dir_;
  std::string model_ = dir_.file("model");
  std::string run_ = dir_.file("run");
};

using Names = std::set<std::string>;

void expect_served(const Attachment& attachment, const std::string& model) {
  ASSERT_TRUE(check_sealed(attachment.manifest.get(), attachment.manifest_nbytes));
  const auto mapping =
      Mapping::map(attachment.manifest.get(), attachment.manifest_nbytes, PROT_READ, MAP_SHARED, "manifest");
  const auto manifest = ManifestView::open(mapping->bytes());
  ASSERT_TRUE(manifest) << manifest.error().message;
  ASSERT_EQ(manifest->file_count(), attachment.images.size());
  for (std::size_t i = 0; i < manifest->file_count(); ++i) {
    const auto file = *manifest->file(i);
    ASSERT_TRUE(check_sealed(attachment.images[i].get(), file.nbytes)) << file.name;
    std::string bytes(file.nbytes, '\0');
    ASSERT_TRUE(
        read_exact(attachment.images[i].get(), std::as_writable_bytes(std::span(bytes)), 0, file.name));
    EXPECT_EQ(bytes, read_file(model + "/" + std::string(file.name))) << file.name;
  }
}

TEST_F(WcachedTest, ServesEveryByteAndTellsItsState) {
  WcachedProcess daemon(arguments({"--name", "Given"}));
  const RankStatus ready = daemon.wait_for(State::ready);
  ASSERT_EQ(ready.state, State::ready) << ready.message;
  EXPECT_EQ(ready.name, "Given");
  EXPECT_EQ(ready.fingerprint.size(), 32u);
  EXPECT_EQ(ready.pid, daemon.pid());
  EXPECT_EQ(ready.filled, ready.nbytes);
  EXPECT_EQ(ready.tensors, 2u);
  struct stat st {};
  ASSERT_EQ(stat(ready.socket.c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777, 0600u);

  auto client = connect(ready);
  ASSERT_TRUE(client) << client.error().message;
  EXPECT_EQ(client->server_pid(), daemon.pid());
  const auto attachment = client->attach(deadline_in(5s));
  ASSERT_TRUE(attachment) << attachment.error().message;
  expect_served(*attachment, model_);

  const auto status = client->status(deadline_in(5s));
  ASSERT_TRUE(status) << status.error().message;
  ASSERT_EQ(status->ranks.size(), 1u);
  RankStatus seen = status->ranks[0];
  ASSERT_EQ(seen.holders.size(), 1u);
  EXPECT_EQ(seen.holders[0].pid, getpid());
  EXPECT_GT(seen.holders[0].since, 0);
  seen.holders.clear();
  seen.holders_complete = ready.holders_complete;
  EXPECT_EQ(seen, ready);

  std::uint64_t done = 0;
  const auto verified = client->verify([&](const VerifyProgress& step) { done = step.done; }, 5s);
  ASSERT_TRUE(verified) << verified.error().message;
  EXPECT_TRUE(verified->ok);
}

TEST_F(WcachedTest, NobodyCanWriteAPublishedByte) {
  WcachedProcess daemon(arguments());
  const RankStatus ready = daemon.wait_for(State::ready);
  auto client = connect(ready);
  const auto attachment = client->attach(deadline_in(5s));
  ASSERT_TRUE(attachment);
  std::set<std::pair<dev_t, ino_t>> images;
  for (const Fd& image : attachment->images) {
    struct stat st {};
    ASSERT_EQ(fstat(image.get(), &st), 0);
    images.emplace(st.st_dev, st.st_ino);
    EXPECT_LT(open(("/proc/self/fd/" + std::to_string(image.get())).c_str(), O_RDWR | O_CLOEXEC), 0);
    EXPECT_LT(pwrite(image.get(), "x", 1, 0), 0);
    EXPECT_EQ(mmap(nullptr, 1, PROT_READ | PROT_WRITE, MAP_SHARED, image.get(), 0), MAP_FAILED);
  }
  std::size_t tried = 0;
  for (const auto& item :
       std::filesystem::directory_iterator("/proc/" + std::to_string(daemon.pid()) + "/fd")) {
    struct stat st {};
    if (stat(item.path().c_str(), &st) != 0 || !images.contains({st.st_dev, st.st_ino})) continue;
    ++tried;
    EXPECT_LT(open(item.path().c_str(), O_RDWR | O_CLOEXEC), 0) << item.path();
  }
  EXPECT_EQ(tried, images.size());
}

TEST_F(WcachedTest, IsEvictedOnlyWhenNobodyHoldsIt) {
  WcachedProcess daemon(arguments());
  const RankStatus ready = daemon.wait_for(State::ready);
  std::optional<Mapping> mapping;
  {
    auto client = connect(ready);
    auto attachment = client->attach(deadline_in(5s));
    ASSERT_TRUE(attachment);
    const auto leased = evict(ready);
    ASSERT_FALSE(leased);
    EXPECT_EQ(leased.error().reason, Reason::busy);
    EXPECT_NE(leased.error().message.find("pid " + std::to_string(getpid())), std::string::npos);
    for (Fd& image : attachment->images) {
      struct stat st {};
      fstat(image.get(), &st);
      if (st.st_size > 100) mapping = *Mapping::map(image.get(), 1, PROT_READ, MAP_PRIVATE, "image");
    }
  }
  ASSERT_TRUE(mapping);
  const auto mapped = evict(ready);  // neither a lease nor an open file: only the mapping is left
  ASSERT_FALSE(mapped);
  EXPECT_EQ(mapped.error().reason, Reason::busy);
  mapping.reset();
  ASSERT_TRUE(connect(ready)) << "a refused eviction changes nothing";

  const auto evicted = evict(ready);
  ASSERT_TRUE(evicted) << evicted.error().message;
  const RankStatus last = daemon.wait_for(State::failed);
  EXPECT_EQ(last.reason, "evicted");
  EXPECT_EQ(last.fingerprint, ready.fingerprint);
  EXPECT_EQ(daemon.wait(), 0);
  EXPECT_EQ(left_in_run_dir(), Names{});
}

TEST_F(WcachedTest, ASecondOneOfTheSameModelIsTold) {
  WcachedProcess first(arguments());
  const RankStatus ready = first.wait_for(State::ready);
  for (const bool remembered : {false, true}) {
    if (remembered) std::this_thread::sleep_for(2200ms);  // younger files are not remembered
    WcachedProcess second(arguments());
    const RankStatus told = second.wait_for(State::failed);
    EXPECT_EQ(told.reason, "busy");
    EXPECT_EQ(told.message, "already served by pid " + std::to_string(first.pid()));
    EXPECT_EQ(told.fingerprint, ready.fingerprint);
    EXPECT_EQ(second.wait(), 6);
  }
  EXPECT_TRUE(connect(ready));
  WcachedProcess other_role(arguments({"--role", "draft0"}));
  const RankStatus draft = other_role.wait_for(State::ready);
  EXPECT_EQ(draft.state, State::ready) << draft.message;
  EXPECT_TRUE(draft.socket.ends_with("_HOST-0_draft0.sock")) << draft.socket;
  EXPECT_NE(draft.fingerprint, ready.fingerprint);
}

TEST_F(WcachedTest, ASignalAtAnyMomentLeavesNothing) {
  make_tiny_checkpoint(model_, 48'000'000);
  std::mt19937 random(11);
  for (int round = 0; round < 30; ++round) {
    WcachedProcess daemon(arguments());
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 150'000));
    daemon.signal(round % 2 == 0 ? SIGTERM : SIGINT);
    const int code = daemon.wait();
    EXPECT_TRUE(code == 0 || code == 1000 + SIGTERM || code == 1000 + SIGINT) << code;
    EXPECT_EQ(left_in_run_dir(), Names{}) << "round " << round;
  }
}

TEST_F(WcachedTest, AKilledOneIsReplacedAndItsMemoryLivesOn) {
  RankStatus before;
  std::optional<Attachment> attachment;
  {
    WcachedProcess daemon(arguments());
    before = daemon.wait_for(State::ready);
    auto client = connect(before);
    attachment = std::move(*client->attach(deadline_in(5s)));
    daemon.signal(SIGKILL);
    EXPECT_EQ(daemon.wait(), 1000 + SIGKILL);
  }
  EXPECT_EQ(connect(before).error().reason, Reason::not_running);
  expect_served(*attachment, model_);
  WcachedProcess daemon(arguments());
  const RankStatus after = daemon.wait_for(State::ready);
  EXPECT_EQ(after.state, State::ready) << after.message;
  EXPECT_EQ(after.socket, before.socket);
  EXPECT_TRUE(connect(after));
}

TEST_F(WcachedTest, ALaunchersEndBeforeReadyIsItsEnd) {
  make_tiny_checkpoint(model_, 48'000'000);
  WcachedProcess daemon(arguments());
  daemon.hang_up();
  EXPECT_EQ(daemon.wait(), 0);
  EXPECT_EQ(left_in_run_dir(), Names{});
}

TEST_F(WcachedTest, ALaunchersEndAfterReadyCostsNothing) {
  WcachedProcess daemon(arguments());
  const RankStatus ready = daemon.wait_for(State::ready);
  daemon.hang_up();
  std::this_thread::sleep_for(200ms);
  auto client = connect(ready);
  ASSERT_TRUE(client) << client.error().message;
  EXPECT_TRUE(client->attach(deadline_in(5s)));
}

TEST_F(WcachedTest, AFileThatIsCutDuringTheFillEndsIt) {
  make_tiny_checkpoint(model_, 200'000'000);
  WcachedProcess daemon(arguments());
  daemon.wait_for([](const RankStatus& status) { return status.state == State::filling; });
  daemon.signal(SIGSTOP);
  std::filesystem::resize_file(model_ + "/model.safetensors", 150'000'000);
  daemon.signal(SIGCONT);
  const RankStatus failed = daemon.wait_for(
      [](const RankStatus& s) { return s.state == State::failed || s.state == State::ready; });
  ASSERT_EQ(failed.state, State::failed);
  EXPECT_TRUE(failed.reason == "stale" || failed.reason == "io") << failed.reason;
  EXPECT_NE(failed.message.find("model.safetensors"), std::string::npos) << failed.message;
  EXPECT_EQ(daemon.wait(), exit_code(reason_from_string(failed.reason)));
  EXPECT_EQ(left_but_logs(), Names{});
  EXPECT_EQ(left_in_run_dir().size(), 1u) << "the log of a failure stays";
}

TEST_F(WcachedTest, BadInputIsToldToTheLauncherAndLeavesNothing) {
  struct Case {
    std::vector<std::string> arguments;
    const char* reason;
    int code;
  };
  const std::string long_run_dir = dir_.file(std::string(90, 'r'));
  std::filesystem::create_directory(long_run_dir);
  chmod(long_run_dir.c_str(), 0700);
  for (const Case& bad : std::vector<Case>{
           {{"--model", dir_.file("absent"), "--run-dir", run_}, "invalid", 2},
           {{"--model", model_, "--run-dir", long_run_dir}, "invalid", 2},
           {{"--model", model_, "--run-dir", dir_.file("no/run")}, "not-found", 3},
           {{"--model", model_, "--run-dir", run_, "--memory-limit", "1M"}, "over-budget", 7}}) {
    WcachedProcess daemon(bad.arguments);
    const RankStatus failed = daemon.wait_for(State::failed);
    EXPECT_EQ(failed.state, State::failed);
    EXPECT_EQ(failed.reason, bad.reason) << failed.message;
    EXPECT_EQ(daemon.wait(), bad.code);
    EXPECT_EQ(left_but_logs(), Names{});
  }
}

TEST_F(WcachedTest, PeersThatMisbehaveHarmOnlyThemselves) {
  WcachedProcess daemon(arguments());
  const RankStatus ready = daemon.wait_for(State::ready);
  auto silent = Connection::connect(ready.socket, deadline_in(5s));
  auto garbage = Connection::connect(ready.socket, deadline_in(5s));
  const std::vector<std::byte> noise(300, std::byte{0xa5});
  ASSERT_TRUE(garbage->send(noise, {}, deadline_in(5s)));
  auto giver = Connection::connect(ready.socket, deadline_in(5s));
  const std::vector<int> fds{0};
  ASSERT_TRUE(giver->send(noise, fds, deadline_in(5s)));
  auto old = Connection::connect(ready.socket, deadline_in(5s));
  Hello ancient;
  ancient.min_version = ancient.max_version = 0;
  ASSERT_TRUE(send_message(*old, Envelope{5, ancient}, deadline_in(5s)));
  const auto refusal = decode((**old->receive({}, deadline_in(5s))).bytes);
  EXPECT_EQ(refusal->id, 5u);
  EXPECT_EQ(std::get<ErrorReply>(refusal->body).error.reason, Reason::version);
  auto impolite = Connection::connect(ready.socket, deadline_in(5s));
  ASSERT_TRUE(send_message(*impolite, Envelope{1, AttachRequest{}}, deadline_in(5s)));
  // Attaches without ever reading, then goes on asking.
  std::vector<Client> deaf;
  for (int i = 0; i < 20; ++i) {
    deaf.push_back(std::move(*connect(ready)));
    for (int request = 0; request < 50; ++request)
      if (!send_message(deaf.back().connection(), Envelope{9, AttachRequest{}}, Deadline::min())) break;
  }
  auto client = connect(ready);
  ASSERT_TRUE(client) << client.error().message;
  const auto attachment = client->attach(deadline_in(5s));
  ASSERT_TRUE(attachment) << attachment.error().message;
  expect_served(*attachment, model_);
  const auto silent_end = silent->receive({}, deadline_in(8s));
  ASSERT_TRUE(silent_end) << "no hello within five seconds is the end";
  EXPECT_FALSE(*silent_end);
}

TEST_F(WcachedTest, ManyFilesTravelInSeveralMessages) {
  for (int i = 0; i < 700; ++i) write_file(model_ + "/file" + std::to_string(i), std::to_string(i));
  WcachedProcess daemon(arguments());
  const RankStatus ready = daemon.wait_for(State::ready);
  ASSERT_EQ(ready.state, State::ready) << ready.message;
  auto client = connect(ready);
  const auto attachment = client->attach(deadline_in(10s));
  ASSERT_TRUE(attachment) << attachment.error().message;
  EXPECT_EQ(attachment->images.size(), 704u);
  expect_served(*attachment, model_);
}

/// The test as wcachefs.
class MountedTest : public WcachedTest {
 protected:
  void mount(const RankStatus& ready) {
    auto client = connect(ready, Purpose::mount);
    ASSERT_TRUE(client);
    ASSERT_TRUE(client->attach(deadline_in(5s)));
    connection_ = client->release();
    thread_ = std::thread([this] { answer(); });
  }
  ~MountedTest() override {
    if (connection_) shutdown(connection_->fd(), SHUT_RDWR);
    if (thread_.joinable()) thread_.join();
  }

  void answer() {
    for (;;) {
      const auto message = connection_->receive({}, deadline_in(30s));
      if (!message || !*message) return;
      const auto request = decode((*message)->bytes);
      if (const auto* withdraw = std::get_if<WithdrawRequest>(&request->body)) {
        heard_ += withdraw->force ? "force " : "withdraw ";
        const bool held = refuse_ && !withdraw->force;
        const std::vector<Holder> holders =
            held ? std::vector<Holder>{{77, "late", 0}} : std::vector<Holder>{};
        send_message(*connection_, Envelope{request->id, WithdrawReply{!held, holders}}, deadline_in(5s));
      } else if (std::holds_alternative<HoldersRequest>(request->body) && !silent_) {
        send_message(*connection_, Envelope{request->id, HoldersReply{holders_}}, deadline_in(5s));
      }
    }
  }

  std::vector<Holder> holders_;
  std::atomic<bool> refuse_ = false;
  std::atomic<bool> silent_ = false;
  std::string heard_;  // read after the daemon has ended
  std::optional<Connection> connection_;
  std::thread thread_;
};

TEST_F(MountedTest, AnOpenFileHoldsTheEntry) {
  WcachedProcess daemon(arguments());
  const RankStatus ready = daemon.wait_for(State::ready);
  holders_ = {{4242, "cat", 5.0}};
  mount(ready);
  const auto status = connect(ready)->status(deadline_in(5s));
  ASSERT_TRUE(status);
  EXPECT_EQ(status->ranks[0].holders, holders_) << "the mount itself is none";
  const auto refused = evict(ready);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().reason, Reason::busy);
  EXPECT_NE(refused.error().message.find("pid 4242 (cat)"), std::string::npos);
  daemon.signal(SIGTERM);
  EXPECT_EQ(daemon.wait(), 0);
  EXPECT_EQ(heard_, "force ");
}

TEST_F(MountedTest, AMountMayRefuseAtTheLastMoment) {
  WcachedProcess daemon(arguments());
  const RankStatus ready = daemon.wait_for(State::ready);
  mount(ready);
  refuse_ = true;
  const auto refused = evict(ready);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("late"), std::string::npos);
  ASSERT_TRUE(connect(ready)->attach(deadline_in(5s)));
  refuse_ = false;
  EXPECT_TRUE(evict(ready));
  EXPECT_EQ(daemon.wait(), 0);
  EXPECT_EQ(heard_, "withdraw withdraw ");
}

TEST_F(MountedTest, ASilentMountIsWaitedForABoundedTime) {
  WcachedProcess daemon(arguments());
  const RankStatus ready = daemon.wait_for(State::ready);
  mount(ready);
  silent_ = true;
  const auto begin = std::chrono::steady_clock::now();
  const auto status = connect(ready)->status(deadline_in(5s));
  ASSERT_TRUE(status);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 2s);
  EXPECT_FALSE(status->ranks[0].holders_complete);
  EXPECT_EQ(evict(ready).error().reason, Reason::timeout);
}

}  // namespace
}  // namespace wcache

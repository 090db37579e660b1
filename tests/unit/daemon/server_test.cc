#include "daemon/server.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/null_sink.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <thread>

#include "ipc/client.h"
#include "tests/unit/daemon/fake_device.h"
#include "tests/unit/ipc/temporary_directory.h"

namespace wcache {
namespace {

using namespace test;
using namespace std::chrono_literals;

constexpr auto kWait = 10s;
constexpr std::uint32_t kConfig = 0, kFirst = 1, kSecond = 2;  // rows of the manifest

std::string bytes_at(int fd, std::size_t nbytes) {
  std::string bytes(nbytes, '\0');
  EXPECT_TRUE(read_exact(fd, std::as_writable_bytes(std::span(bytes)), 0, "a descriptor"));
  return bytes;
}

Fd memory() {
  return Fd::adopt(memfd_create("copy", MFD_CLOEXEC));
}

/// A served entry, whose loop runs on a thread.
class ServedEntry : public testing::Test {
 protected:
  ~ServedEntry() override {
    if (device_ != nullptr) device_->block(false);
    loop_->post([this] { loop_->stop(); });
    if (thread_.joinable()) thread_.join();
  }

  void serve(std::optional<TestDevice> device) {
    TestEntryOptions options;
    options.memfd = true;
    options.device = std::move(device);
    TestEntry made = make_test_entry({{"config.json", "{}"},
                                      test_weights("model-1.safetensors", {"a", "b"}, 1'500'001),
                                      test_weights("model-2.safetensors", {"c"}, 100)},
                                     options);
    stored_.plan = made.plan;
    stored_.digests = made.digests;
    stored_.fingerprint = made.fingerprint;
    stored_.manifest_nbytes = made.manifest_nbytes;
    bytes_ = made.bytes;
    slab_plan_ = made.slab_plan;
    if (options.device) {
      auto fake = std::make_unique<FakeDevice>(made);
      device_ = fake.get();
      stored_.device = std::move(fake);
    }
    stored_.memory = std::move(made.arena);
    server_.emplace(*loop_, *Listener::bind(*SocketLock::take(path_)), stored_,
                    Server::Events{[] { return RankStatus{}; }, [] {}}, log_, dir_.path());
    ASSERT_TRUE(server_->start());
    thread_ = std::thread([this] { EXPECT_TRUE(loop_->run()); });
  }

  Client connect(Purpose purpose = Purpose::client) {
    auto client = Client::connect(path_, purpose, "test", deadline_in(kWait));
    EXPECT_TRUE(client) << client.error().message;
    return std::move(*client);
  }
  static Result<std::string> copy(Client& client, std::uint32_t file, std::uint64_t offset,
                                  std::uint32_t nbytes) {
    const Fd into = memory();
    if (Status copied = client.copy({file, offset, nbytes}, into.get(), deadline_in(kWait)); !copied)
      return fail(copied.error());
    return bytes_at(into.get(), nbytes);
  }
  Reason refusal(const CopyRequest& which, int into) {
    Client client = connect();
    const Status copied = client.copy(which, into, deadline_in(kWait));
    EXPECT_FALSE(copied);
    EXPECT_TRUE(copy(client, kSecond, 0, 1)) << "the connection is of use still";
    return copied ? Reason::internal : copied.error().reason;
  }

  TemporaryDirectory dir_;
  std::string path_ = dir_.file("wcache_x.sock");
  spdlog::logger log_{"test", std::make_shared<spdlog::sinks::null_sink_mt>()};
  std::unique_ptr<EventLoop> loop_ = std::move(*EventLoop::create());
  StoredEntry stored_;
  FakeDevice* device_ = nullptr;
  std::vector<std::string> bytes_;
  SlabPlan slab_plan_;
  std::optional<Server> server_;
  std::thread thread_;
};

TEST_F(ServedEntry, AttachingToADeviceGivesHostImagesAndSlabs) {
  serve(TestDevice{});
  Client client = connect();
  const auto attachment = client.attach(deadline_in(kWait));
  ASSERT_TRUE(attachment) << attachment.error().message;
  ASSERT_EQ(attachment->images.size(), 1u);
  EXPECT_EQ(bytes_at(attachment->images[0].get(), 2), "{}");
  EXPECT_EQ(attachment->instance, device_->instance());
  EXPECT_TRUE(attachment->handles.empty());
  ASSERT_EQ(attachment->slabs.size(), slab_plan_.slabs.size());
  ASSERT_GT(attachment->slabs.size(), 1u);
  const SlabPlace& place = slab_plan_.images[kSecond].back();
  const std::string slab = bytes_at(attachment->slabs[place.slab].get(), slab_plan_.slabs[place.slab]);
  EXPECT_TRUE(slab.substr(place.offset, 100) == bytes_[kSecond].substr(64));
}

TEST_F(ServedEntry, AttachingToALegacyDeviceGivesHandles) {
  serve(TestDevice{.ipc_kind = "cuda-ipc"});
  Client client = connect();
  const auto attachment = client.attach(deadline_in(kWait));
  ASSERT_TRUE(attachment) << attachment.error().message;
  EXPECT_TRUE(attachment->slabs.empty());
  ASSERT_EQ(attachment->handles.size(), slab_plan_.slabs.size());
  EXPECT_EQ(attachment->handles[1][63], std::byte{2});
  EXPECT_EQ(connect().slab({0}, deadline_in(kWait)).error().reason, Reason::invalid);
}

TEST_F(ServedEntry, OneSlabIsRedeemedAndLeased) {
  serve(TestDevice{});
  Client client = connect();
  const std::uint32_t last = static_cast<std::uint32_t>(slab_plan_.slabs.size()) - 1;
  EXPECT_EQ(client.slab({last + 1}, deadline_in(kWait)).error().reason, Reason::not_found);
  EXPECT_TRUE(connect().status(deadline_in(kWait))->ranks[0].holders.empty());
  const auto slab = client.slab({last}, deadline_in(kWait));
  ASSERT_TRUE(slab) << slab.error().message;
  EXPECT_EQ(slab->nbytes, slab_plan_.slabs[last]);
  struct stat st {};
  ASSERT_EQ(fstat(slab->fd.get(), &st), 0);
  EXPECT_EQ(static_cast<std::uint64_t>(st.st_size), slab->nbytes);
  const std::vector<Holder> holders = connect().status(deadline_in(kWait))->ranks[0].holders;
  ASSERT_EQ(holders.size(), 1u);
  EXPECT_EQ(holders[0].pid, getpid());
}

TEST_F(ServedEntry, AnEntryInHostMemoryHasNoSlabsAndCopiesNothing) {
  serve(std::nullopt);
  Client client = connect();
  EXPECT_EQ(client.slab({0}, deadline_in(kWait)).error().reason, Reason::invalid);
  EXPECT_EQ(copy(client, kFirst, 0, 1).error().reason, Reason::invalid);
  const auto attachment = client.attach(deadline_in(kWait));
  ASSERT_TRUE(attachment);
  EXPECT_EQ(attachment->images.size(), 3u);
  EXPECT_EQ(attachment->instance, "");
}

TEST_F(ServedEntry, CopiesAreTheFileByteForByte) {
  serve(TestDevice{});
  Client client = connect(Purpose::mount);
  const std::string& whole = bytes_[kFirst];
  ASSERT_EQ(whole.size(), 3'000'066u);
  for (const auto& [offset, nbytes] : {std::pair<std::size_t, std::size_t>{0, whole.size()},
                                       {0, 0},
                                       {whole.size(), 0},
                                       {whole.size() - 1, 1},
                                       {1, 1 << 20},
                                       {63, 2},
                                       {1'500'000, 200},
                                       {17, (1 << 20) + 1}}) {
    const Result<std::string> got = copy(client, kFirst, offset, static_cast<std::uint32_t>(nbytes));
    ASSERT_TRUE(got) << got.error().message;
    EXPECT_TRUE(*got == whole.substr(offset, nbytes)) << offset << " " << nbytes;
  }
}

TEST_F(ServedEntry, WhatCannotBeCopiedIsRefused) {
  serve(TestDevice{});
  const Fd good = memory();
  const std::uint64_t nbytes = bytes_[kFirst].size();
  for (const CopyRequest& which : {CopyRequest{kFirst, nbytes, 1}, CopyRequest{kFirst, nbytes + 1, 0},
                                   CopyRequest{kFirst, UINT64_MAX, 2}, CopyRequest{kFirst, 0, UINT32_MAX},
                                   CopyRequest{kFirst, 0, kMaxCopyNbytes + 1}, CopyRequest{kConfig, 0, 1},
                                   CopyRequest{3, 0, 1}, CopyRequest{UINT32_MAX, 0, 1}})
    EXPECT_EQ(refusal(which, good.get()), Reason::invalid) << which.file << " " << which.offset;

  const Fd read_only =
      std::move(*open_file(("/proc/self/fd/" + std::to_string(good.get())).c_str(), O_RDONLY));
  EXPECT_EQ(refusal({kFirst, 0, 1}, read_only.get()), Reason::invalid);
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
  const Fd pipe_read = Fd::adopt(ends[0]), pipe_write = Fd::adopt(ends[1]);
  EXPECT_EQ(refusal({kFirst, 0, 1}, pipe_write.get()), Reason::invalid);
  const Fd sealed = Fd::adopt(memfd_create("sealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(fcntl(sealed.get(), F_ADD_SEALS, F_SEAL_GROW), 0);
  EXPECT_EQ(refusal({kFirst, 0, 1}, sealed.get()), Reason::denied);

  Client command = connect(Purpose::command);
  EXPECT_EQ(command.copy({kFirst, 0, 1}, good.get(), deadline_in(kWait)).error().reason, Reason::denied);
  Client without = connect();
  EXPECT_EQ(without.request<CopyReply>(CopyRequest{kFirst, 0, 1}, deadline_in(kWait)).error().reason,
            Reason::invalid);
}

TEST_F(ServedEntry, AnErrorOfTheDriversIsTheAnswer) {
  serve(TestDevice{});
  Client client = connect();
  device_->break_with(Error{Reason::io, "the driver says 700"});
  EXPECT_EQ(copy(client, kFirst, 0, 10).error().message, "the driver says 700");
  device_->break_with(std::nullopt);
  EXPECT_TRUE(copy(client, kFirst, 0, 10));
}

/// While it lives no thread can be made in this process: none finds memory for its stack.
class NoThreads {
 public:
  NoThreads() {
    pthread_getattr_default_np(&before_);
    pthread_attr_t huge;
    pthread_attr_init(&huge);
    pthread_attr_setstacksize(&huge, std::size_t{1} << 50);
    EXPECT_EQ(pthread_setattr_default_np(&huge), 0);
    pthread_attr_destroy(&huge);
  }
  ~NoThreads() {
    pthread_setattr_default_np(&before_);
    pthread_attr_destroy(&before_);
  }

 private:
  pthread_attr_t before_;
};

TEST_F(ServedEntry, WhereThereIsNoThreadToCopyWithTheAnswerIsAnError) {
  serve(TestDevice{});
  Client client = connect();
  {
    const NoThreads none;
    for (int i = 0; i < 3; ++i) {
      const Result<std::string> got = copy(client, kFirst, 0, 10);
      ASSERT_FALSE(got);
      EXPECT_EQ(got.error().reason, Reason::io);
      EXPECT_THAT(got.error().message, testing::HasSubstr("no thread"));
    }
  }
  EXPECT_TRUE(copy(client, kFirst, 0, 10)) << "the connection is of use still";
  device_->block(true);
  std::thread first([&] { EXPECT_TRUE(copy(client, kFirst, 0, 10)); });
  ASSERT_TRUE(device_->wait_reading(1));
  Connection second = connect().release();
  const Fd into = memory();
  const std::array<int, 1> fds{into.get()};
  {
    const NoThreads none;  // then the one that there is does it
    ASSERT_TRUE(send_message(second, {1, CopyRequest{kFirst, 0, 10}}, deadline_in(kWait), fds));
    ASSERT_TRUE(connect().status(deadline_in(kWait))) << "which is answered after the request was taken";
  }
  device_->block(false);
  first.join();
  EXPECT_TRUE(*second.receive({}, deadline_in(kWait)));
}

TEST_F(ServedEntry, ItsEndWaitsForNoReadOfADeviceThatHangs) {
  serve(TestDevice{});
  device_->block(true);
  Connection connection = connect().release();
  const Fd into = memory();
  const std::array<int, 1> fds{into.get()};
  ASSERT_TRUE(send_message(connection, {1, CopyRequest{kFirst, 0, 10}}, deadline_in(kWait), fds));
  ASSERT_TRUE(device_->wait_reading(1));
  loop_->post([this] { loop_->stop(); });
  thread_.join();
  server_.reset();
}

TEST_F(ServedEntry, SeveralReadersAtOnceAndNoneHoldsUpTheLoop) {
  serve(TestDevice{});
  device_->block(true);
  std::vector<Client> clients;
  for (int i = 0; i < 6; ++i) clients.push_back(connect());
  std::vector<std::thread> readers;
  std::atomic<int> right = 0;
  for (Client& client : clients)
    readers.emplace_back([&] {
      const Result<std::string> got = copy(client, kFirst, 5, 1000);
      if (got && *got == bytes_[kFirst].substr(5, 1000)) ++right;
    });
  EXPECT_TRUE(device_->wait_reading(4));
  EXPECT_TRUE(connect().status(deadline_in(kWait)));
  EXPECT_TRUE(connect().attach(deadline_in(kWait)));
  device_->block(false);
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(right, 6);
}

TEST_F(ServedEntry, NothingMoreIsReadOfWhoWaitsForACopy) {
  serve(TestDevice{});
  device_->block(true);
  Connection connection = connect().release();
  const Fd into = memory();
  const std::array<int, 1> fds{into.get()};
  ASSERT_TRUE(send_message(connection, {1, CopyRequest{kFirst, 0, 10}}, deadline_in(kWait), fds));
  ASSERT_TRUE(device_->wait_reading(1));
  ASSERT_TRUE(send_message(connection, {2, CopyRequest{kFirst, 0, 10}}, deadline_in(kWait), fds));
  ASSERT_TRUE(send_message(connection, {3, StatusRequest{}}, deadline_in(kWait)));
  EXPECT_EQ(connection.receive({}, deadline_in(50ms)).error().reason, Reason::timeout);
  device_->block(false);
  for (const std::uint32_t id : {1u, 2u, 3u}) {
    const auto message = connection.receive({}, deadline_in(kWait));
    ASSERT_TRUE(message && *message);
    EXPECT_EQ(decode((*message)->bytes)->id, id);
  }
}

TEST_F(ServedEntry, ReadersThatHangUpCostNothing) {
  serve(TestDevice{});
  device_->block(true);
  const Fd into = memory();
  const std::array<int, 1> fds{into.get()};
  for (int i = 0; i < 20; ++i) {  // some of them under way, the others still waiting
    Connection connection = connect().release();
    ASSERT_TRUE(send_message(connection, {1, CopyRequest{kFirst, 0, 10}}, deadline_in(kWait), fds));
    ASSERT_TRUE(i >= 4 || device_->wait_reading(static_cast<std::size_t>(i) + 1));
  }
  EXPECT_TRUE(connect().status(deadline_in(kWait)));
  device_->block(false);
  Client client = connect();
  EXPECT_TRUE(copy(client, kFirst, 0, 10));
}

TEST_F(ServedEntry, ADescriptorThatNothingAskedForEndsTheConnection) {
  serve(TestDevice{});
  Connection connection = connect().release();
  const Fd into = memory();
  const std::array<int, 1> one{into.get()};
  ASSERT_TRUE(send_message(connection, {1, StatusRequest{}}, deadline_in(kWait), one));
  EXPECT_EQ(*connection.receive({}, deadline_in(kWait)), std::nullopt);
  Connection other = connect().release();
  const std::array<int, 2> two{into.get(), into.get()};
  ASSERT_TRUE(send_message(other, {1, CopyRequest{kFirst, 0, 1}}, deadline_in(kWait), two));
  EXPECT_EQ(*other.receive({}, deadline_in(kWait)), std::nullopt);
  EXPECT_TRUE(connect().status(deadline_in(kWait)));
}

}  // namespace
}  // namespace wcache

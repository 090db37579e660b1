#include "ipc/client.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <optional>
#include <thread>

#include "ipc/listener.h"
#include "temporary_directory.h"

namespace wcache {
namespace {

using namespace std::chrono_literals;

/// A daemon of the test's own: one connection, driven by `script` on a thread.
class ClientTest : public testing::Test {
 protected:
  ~ClientTest() override {
    if (thread_.joinable()) thread_.join();
  }

  void serve(std::function<void(Connection&)> script) {
    listener_.emplace(*Listener::bind(*SocketLock::take(path_)));
    thread_ = std::thread([this, script = std::move(script)] {
      pollfd item{listener_->fd(), POLLIN, 0};
      poll(&item, 1, 5000);
      auto accepted = listener_->accept();
      if (accepted && *accepted) script(**accepted);
    });
  }

  /// The request's id; -1 when the client is gone.
  static std::int64_t next_request(Connection& connection) {
    const auto message = connection.receive({}, deadline_in(5s));
    if (!message || !*message) return -1;
    const auto envelope = decode((*message)->bytes);
    return envelope ? envelope->id : -1;
  }

  static void reply(Connection& connection, std::int64_t id, Body body, std::vector<int> fds = {}) {
    const auto bytes = encode({static_cast<std::uint32_t>(id), std::move(body)});
    ASSERT_TRUE(bytes);
    connection.send(*bytes, fds, deadline_in(5s));
  }

  static void greet(Connection& connection) {
    reply(connection, next_request(connection), HelloReply{1, 77});
  }

  Result<Client> connect(std::chrono::milliseconds wait = 5s) {
    return Client::connect(path_, Purpose::client, "test", deadline_in(wait));
  }

  TemporaryDirectory dir_;
  std::string path_ = dir_.file("wcache_x.sock");
  std::optional<Listener> listener_;
  std::thread thread_;
};

TEST_F(ClientTest, NobodyThere) {
  EXPECT_EQ(connect().error().reason, Reason::not_running);
}

TEST_F(ClientTest, GreetsAndAsks) {
  serve([](Connection& connection) {
    const auto hello = decode((*connection.receive({}, deadline_in(5s)))->bytes);
    EXPECT_EQ(std::get<Hello>(hello->body).purpose, Purpose::client);
    EXPECT_EQ(std::get<Hello>(hello->body).command, "test");
    reply(connection, hello->id, HelloReply{1, 77});
    reply(connection, next_request(connection), EvictReply{});
  });
  auto client = connect();
  ASSERT_TRUE(client) << client.error().message;
  EXPECT_EQ(client->server_pid(), 77);
  EXPECT_TRUE(client->request<EvictReply>(EvictRequest{}, deadline_in(5s)));
}

TEST_F(ClientTest, AnErrorReplyIsTheError) {
  serve([](Connection& connection) {
    greet(connection);
    reply(connection, next_request(connection), ErrorReply{Error{Reason::busy, "held", "wait", "k", 0}});
  });
  auto client = connect();
  const auto reply = client->request<EvictReply>(EvictRequest{}, deadline_in(5s));
  ASSERT_FALSE(reply);
  EXPECT_EQ(reply.error().reason, Reason::busy);
  EXPECT_EQ(reply.error().message, "held");
  EXPECT_EQ(reply.error().hint, "wait");
}

TEST_F(ClientTest, AVersionThatWasNotOfferedIsRefused) {
  for (const int version : {0, 2}) {
    serve([version](Connection& connection) {
      reply(connection, next_request(connection), HelloReply{static_cast<std::uint16_t>(version), 77});
    });
    EXPECT_EQ(connect().error().reason, Reason::version);
    thread_.join();
    listener_.reset();
  }
}

TEST_F(ClientTest, APeerThatSaysNothingIsATimeout) {
  serve([](Connection& connection) {
    next_request(connection);
    next_request(connection);
  });
  EXPECT_EQ(connect(50ms).error().reason, Reason::timeout);
}

TEST_F(ClientTest, APeerThatHangsUpIsNotRunning) {
  serve([](Connection& connection) { next_request(connection); });
  EXPECT_EQ(connect().error().reason, Reason::not_running);
}

TEST_F(ClientTest, GarbageIsCorrupt) {
  serve([](Connection& connection) {
    next_request(connection);
    const std::vector<std::byte> garbage(100, std::byte{0x5a});
    connection.send(garbage, {}, deadline_in(5s));
  });
  EXPECT_EQ(connect().error().reason, Reason::corrupt);
}

TEST_F(ClientTest, AnAnswerOfAnotherKindOrToAnotherRequestIsCorrupt) {
  serve([](Connection& connection) {
    greet(connection);
    reply(connection, next_request(connection), AttachReply{});
    reply(connection, next_request(connection) + 1, EvictReply{});
  });
  auto client = connect();
  EXPECT_EQ(client->request<EvictReply>(EvictRequest{}, deadline_in(5s)).error().reason, Reason::corrupt);
  EXPECT_EQ(client->request<EvictReply>(EvictRequest{}, deadline_in(5s)).error().reason, Reason::corrupt);
}

TEST_F(ClientTest, StatusPagesAreJoined) {
  StatusReply status;
  status.mount.path = "/mnt";
  for (int i = 0; i < 400; ++i) {
    status.ranks.emplace_back().source = std::string(300, 'x');
    status.mount.entries.push_back("target/" + std::to_string(i));
  }
  serve([status](Connection& connection) {
    greet(connection);
    const auto id = next_request(connection);
    for (const StatusReply& page : pages_of(status)) reply(connection, id, page);
  });
  auto client = connect();
  const auto whole = client->status(deadline_in(5s));
  ASSERT_TRUE(whole) << whole.error().message;
  EXPECT_EQ(*whole, status);
}

std::vector<Fd> numbered_files(std::size_t count) {
  std::vector<Fd> files;
  for (std::size_t i = 0; i < count; ++i) {
    files.push_back(Fd::adopt(memfd_create("test", MFD_CLOEXEC)));
    EXPECT_EQ(ftruncate(files.back().get(), static_cast<off_t>(i)), 0);
  }
  return files;
}

std::vector<int> numbers_of(const std::vector<Fd>& files, std::size_t first, std::size_t count) {
  std::vector<int> out;
  for (std::size_t i = first; i < first + count; ++i) out.push_back(files[i].get());
  return out;
}

TEST_F(ClientTest, AttachTakesManifestAndImagesOverSeveralMessages) {
  constexpr std::size_t kCount = 601;
  serve([](Connection& connection) {
    greet(connection);
    const auto id = next_request(connection);
    const std::vector<Fd> files = numbered_files(kCount);
    AttachReply head{0, 9};
    ASSERT_TRUE(send_attachment(connection, static_cast<std::uint32_t>(id), head,
                                numbers_of(files, 0, kCount), deadline_in(5s)));
  });
  auto client = connect();
  const auto attachment = client->attach(deadline_in(5s));
  ASSERT_TRUE(attachment) << attachment.error().message;
  EXPECT_EQ(attachment->manifest_nbytes, 9u);
  ASSERT_EQ(attachment->images.size(), kCount - 1);
  for (std::size_t i = 0; i < attachment->images.size(); ++i) {
    struct stat st {};
    ASSERT_EQ(fstat(attachment->images[i].get(), &st), 0);
    EXPECT_EQ(st.st_size, static_cast<off_t>(i + 1));
  }
}

TEST_F(ClientTest, SlabsAreTheLastDescriptors) {
  const std::string instance(32, 'd');
  serve([instance](Connection& connection) {
    greet(connection);
    const auto id = next_request(connection);
    const std::vector<Fd> files = numbered_files(7);
    ASSERT_TRUE(send_attachment(connection, static_cast<std::uint32_t>(id),
                                AttachReply{0, 9, 4, {}, instance}, numbers_of(files, 0, 7),
                                deadline_in(5s)));
  });
  auto client = connect();
  const auto attachment = client->attach(deadline_in(5s));
  ASSERT_TRUE(attachment) << attachment.error().message;
  EXPECT_EQ(attachment->images.size(), 2u);
  ASSERT_EQ(attachment->slabs.size(), 4u);
  EXPECT_EQ(attachment->instance, instance);
  struct stat st {};
  ASSERT_EQ(fstat(attachment->slabs[0].get(), &st), 0);
  EXPECT_EQ(st.st_size, 3);
}

TEST_F(ClientTest, HandlesComeAsBytes) {
  DeviceHandle handle{};
  handle[63] = std::byte{7};
  serve([handle](Connection& connection) {
    greet(connection);
    const auto id = next_request(connection);
    const std::vector<Fd> files = numbered_files(2);
    ASSERT_TRUE(send_attachment(connection, static_cast<std::uint32_t>(id),
                                AttachReply{0, 9, 0, {{}, handle}, std::string(32, 'd')},
                                numbers_of(files, 0, 2), deadline_in(5s)));
  });
  auto client = connect();
  const auto attachment = client->attach(deadline_in(5s));
  ASSERT_TRUE(attachment) << attachment.error().message;
  EXPECT_EQ(attachment->handles, (std::vector<DeviceHandle>{{}, handle}));
  EXPECT_TRUE(attachment->slabs.empty());
}

TEST_F(ClientTest, AnAttachmentThatCannotBeTrueIsCorrupt) {
  const std::string instance(32, 'd');
  for (const AttachReply& lie :
       {AttachReply{0, 9}, AttachReply{3, 9, 3, {}, instance}, AttachReply{3, 9, 4, {}, instance},
        AttachReply{3, 9, 1, {DeviceHandle{}}, instance}, AttachReply{3, 9, 1, {}, ""},
        AttachReply{3, 9, 1, {}, "no hex"}, AttachReply{3, 9, 0, {}, instance},
        AttachReply{3, 9, 0, {DeviceHandle{}}, ""}}) {
    serve([lie](Connection& connection) {
      greet(connection);
      reply(connection, next_request(connection), lie);
    });
    EXPECT_EQ(connect()->attach(deadline_in(5s)).error().reason, Reason::corrupt);
    thread_.join();
    listener_.reset();
  }
}

TEST_F(ClientTest, AskingForAnOrphanNamesIt) {
  const AttachRequest which{"target", std::string(32, 'a'), 2};
  serve([which](Connection& connection) {
    greet(connection);
    const auto request = decode((*connection.receive({}, deadline_in(5s)))->bytes);
    EXPECT_EQ(request->body, Body(which));
    reply(connection, request->id, ErrorReply{Error{Reason::not_found, "no such orphan"}});
  });
  auto client = connect();
  EXPECT_EQ(client->attach(deadline_in(5s), which).error().reason, Reason::not_found);
}

TEST_F(ClientTest, ASlabComesWithItsDescriptor) {
  serve([](Connection& connection) {
    greet(connection);
    const auto request = decode((*connection.receive({}, deadline_in(5s)))->bytes);
    EXPECT_EQ(request->body, Body(SlabRequest{5}));
    const std::vector<Fd> files = numbered_files(4);
    reply(connection, request->id, SlabReply{4096}, {files[3].get()});
    reply(connection, next_request(connection), SlabReply{4096});
  });
  auto client = connect();
  const auto slab = client->slab(SlabRequest{5}, deadline_in(5s));
  ASSERT_TRUE(slab) << slab.error().message;
  EXPECT_EQ(slab->nbytes, 4096u);
  struct stat st {};
  ASSERT_EQ(fstat(slab->fd.get(), &st), 0);
  EXPECT_EQ(st.st_size, 3);
  EXPECT_EQ(client->slab(SlabRequest{5}, deadline_in(5s)).error().reason, Reason::corrupt);
}

TEST_F(ClientTest, ACopyIsWrittenIntoTheDescriptorThatWentWithIt) {
  serve([](Connection& connection) {
    greet(connection);
    const auto message = connection.receive({kMaxMessageBytes, 1}, deadline_in(5s));
    const auto request = decode((*message)->bytes);
    EXPECT_EQ(request->body, Body(CopyRequest{2, 10, 4}));
    ASSERT_EQ((*message)->fds.size(), 1u);
    EXPECT_EQ(pwrite((*message)->fds[0].get(), "abcd", 4, 0), 4);
    reply(connection, request->id, CopyReply{4});
  });
  auto client = connect();
  const std::vector<Fd> memory = numbered_files(1);
  ASSERT_TRUE(client->copy({2, 10, 4}, memory[0].get(), deadline_in(5s)));
  char bytes[4];
  ASSERT_EQ(pread(memory[0].get(), bytes, 4, 0), 4);
  EXPECT_EQ(std::string_view(bytes, 4), "abcd");
}

TEST_F(ClientTest, ACopyThatFailsLeavesTheConnectionAndAShortOneIsCorrupt) {
  serve([](Connection& connection) {
    greet(connection);
    for (const Body& body :
         {Body(ErrorReply{Error{Reason::io, "broken"}}), Body(CopyReply{4}), Body(CopyReply{3})}) {
      const auto message = connection.receive({kMaxMessageBytes, 1}, deadline_in(5s));
      reply(connection, decode((*message)->bytes)->id, body);
    }
  });
  auto client = connect();
  const std::vector<Fd> memory = numbered_files(1);
  EXPECT_EQ(client->copy({2, 10, 4}, memory[0].get(), deadline_in(5s)).error().message, "broken");
  EXPECT_TRUE(client->copy({2, 10, 4}, memory[0].get(), deadline_in(5s)));
  EXPECT_EQ(client->copy({2, 10, 4}, memory[0].get(), deadline_in(5s)).error().reason, Reason::corrupt);
}

TEST_F(ClientTest, FewerOrMisplacedDescriptorsAreCorrupt) {
  for (const Descriptors& lie : {Descriptors{0, 3}, Descriptors{1, 2}, Descriptors{0, 0}}) {
    serve([lie](Connection& connection) {
      greet(connection);
      const auto id = next_request(connection);
      const std::vector<Fd> files = numbered_files(2);
      reply(connection, id, AttachReply{3, 9});
      reply(connection, id, lie, lie.count == 0 ? std::vector<int>{} : numbers_of(files, 0, 2));
    });
    EXPECT_EQ(connect()->attach(deadline_in(5s)).error().reason, Reason::corrupt);
    thread_.join();
    listener_.reset();
  }
}

TEST_F(ClientTest, VerifyReportsOnTheWay) {
  serve([](Connection& connection) {
    greet(connection);
    const auto id = next_request(connection);
    reply(connection, id, VerifyProgress{1, 2});
    reply(connection, id, VerifyProgress{2, 2});
    reply(connection, id, VerifyReply{true, "", "", "", ""});
  });
  std::uint64_t done = 0;
  const auto reply = connect()->verify([&](const VerifyProgress& step) { done += step.done; }, 5s);
  ASSERT_TRUE(reply);
  EXPECT_TRUE(reply->ok);
  EXPECT_EQ(done, 3u);
}

}  // namespace
}  // namespace wcache

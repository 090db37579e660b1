#include "fs/control.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/unit/fs/reading_daemon.h"

namespace wcache {
namespace {

using namespace test;
using namespace std::chrono_literals;

constexpr auto kWait = 10s;

class NoKernelCache : public KernelCache {
 public:
  int drop_name(std::uint64_t, const std::string&) override { return 0; }
  int delete_name(std::uint64_t, std::uint64_t, const std::string&) override { return 0; }
  int drop_attributes(std::uint64_t) override { return 0; }
};

/// An entry whose daemon has died, and wcachefs's socket.
class OrphanOverASocket : public testing::Test {
 protected:
  ~OrphanOverASocket() override { control_.reset(); }

  void orphan(TestEntry entry) {
    fingerprint_ = entry.fingerprint;
    made_ = std::move(entry);
    ASSERT_TRUE(groups_.join(1, *Part::make(attachment_of(made_), getpid(), "/run/x.sock", quiet_log())));
    groups_.lose(1);
    auto control = Control::start(
        *SocketLock::take(path_),
        {[this] {
           StatusReply reply;
           reply.ranks = groups_.orphans();
           return reply;
         },
         [this](Role role, const Fingerprint& print) { return groups_.evict_orphan(role, print); },
         [this](Role role, const Fingerprint& print, std::uint32_t rank, Holder holder) {
           return groups_.hold_orphan(role, print, rank, std::move(holder));
         },
         [](const Fingerprint&, const Fingerprint&) {}},
        quiet_log());
    ASSERT_TRUE(control);
    control_ = std::move(*control);
  }
  Client connect() { return std::move(*Client::connect(path_, Purpose::client, "test", deadline_in(kWait))); }
  AttachRequest which() const { return {"target", to_hex(fingerprint_), 0}; }
  Reason evict() {
    Client client = connect();
    const auto reply =
        client.request<EvictReply>(EvictRequest{"target", to_hex(fingerprint_)}, deadline_in(kWait));
    return reply ? Reason::evicted : reply.error().reason;
  }
  static std::string bytes_of(const Fd& fd) {
    struct stat st {};
    EXPECT_EQ(fstat(fd.get(), &st), 0);
    std::string bytes(static_cast<std::size_t>(st.st_size), '\0');
    EXPECT_TRUE(read_exact(fd.get(), std::as_writable_bytes(std::span(bytes)), 0, "a descriptor"));
    return bytes;
  }

  TemporaryDirectory dir_;
  std::string path_ = dir_.file("wcachefs.sock");
  Tree tree_{[] { return std::int64_t{0}; }};
  OpenFiles files_{[] { return 50.0; }};
  NoKernelCache kernel_;
  Notifier notifier_{kernel_, quiet_log()};
  Groups groups_{tree_, files_, notifier_, [](const Entry&) { return MappingScan{}; }, [] { return 100.0; }};
  TestEntry made_;
  Fingerprint fingerprint_;
  std::unique_ptr<Control> control_;
};

TEST_F(OrphanOverASocket, IsAttachedToAsToItsDaemon) {
  orphan(device_entry(small_model()));
  Client client = connect();
  const auto attachment = client.attach(deadline_in(kWait), which());
  ASSERT_TRUE(attachment) << attachment.error().message;
  EXPECT_EQ(attachment->manifest_nbytes, made_.manifest_nbytes);
  EXPECT_EQ(bytes_of(attachment->manifest), bytes_of(made_.manifest()));
  ASSERT_EQ(attachment->images.size(), 3u);
  EXPECT_EQ(bytes_of(attachment->images[0]), small_model()[0].bytes);
  EXPECT_EQ(attachment->instance, made_.instance);
  ASSERT_EQ(attachment->slabs.size(), made_.slabs.size());
  for (std::size_t i = 0; i < made_.slabs.size(); ++i)
    EXPECT_TRUE(bytes_of(attachment->slabs[i]) == bytes_of(made_.slabs[i]));
}

TEST_F(OrphanOverASocket, InHostMemoryToo) {
  TestEntryOptions options;
  options.memfd = true;
  orphan(make_test_entry(small_model(), options));
  Client client = connect();
  const auto attachment = client.attach(deadline_in(kWait), which());
  ASSERT_TRUE(attachment) << attachment.error().message;
  EXPECT_EQ(attachment->images.size(), 5u);
  EXPECT_EQ(client.slab({0, "target", to_hex(fingerprint_), 0}, deadline_in(kWait)).error().reason,
            Reason::invalid);
}

TEST_F(OrphanOverASocket, OneSlabIsRedeemed) {
  orphan(device_entry(small_model()));
  Client client = connect();
  const std::uint32_t last = static_cast<std::uint32_t>(made_.slabs.size()) - 1;
  const auto slab = client.slab({last, "target", to_hex(fingerprint_), 0}, deadline_in(kWait));
  ASSERT_TRUE(slab) << slab.error().message;
  EXPECT_EQ(slab->nbytes, made_.slab_plan.slabs[last]);
  EXPECT_TRUE(bytes_of(slab->fd) == bytes_of(made_.slabs[last]));
  EXPECT_EQ(client.slab({last + 1, "target", to_hex(fingerprint_), 0}, deadline_in(kWait)).error().reason,
            Reason::not_found);
  EXPECT_EQ(evict(), Reason::busy) << "the connection is a lease";
}

TEST_F(OrphanOverASocket, WhoIsAttachedHoldsIt) {
  orphan(device_entry(small_model()));
  {
    Client client = connect();
    ASSERT_TRUE(client.attach(deadline_in(kWait), which()));
    ASSERT_TRUE(client.attach(deadline_in(kWait), which()));
    EXPECT_EQ(evict(), Reason::busy);
    const std::vector<Holder> holders = connect().status(deadline_in(kWait))->ranks[0].holders;
    ASSERT_EQ(holders.size(), 1u);
    EXPECT_EQ(holders[0].pid, getpid());
    EXPECT_EQ(holders[0].since, 100);
  }
  EXPECT_EQ(evict(), Reason::evicted);
  EXPECT_EQ(connect().attach(deadline_in(kWait), which()).error().reason, Reason::not_found);
}

TEST_F(OrphanOverASocket, OfLegacyMemoryThereIsNothingLeft) {
  orphan(device_entry(small_model(), {.ipc_kind = "cuda-ipc"}));
  Client client = connect();
  const auto refused = client.attach(deadline_in(kWait), which());
  EXPECT_EQ(refused.error().reason, Reason::not_running);
  EXPECT_THAT(refused.error().message, testing::HasSubstr("went with its daemon"));
  const RankStatus rank = client.status(deadline_in(kWait))->ranks[0];
  EXPECT_EQ(rank.ipc_kind, "cuda-ipc");
  EXPECT_FALSE(rank.survives);
  EXPECT_EQ(evict(), Reason::evicted);
}

TEST_F(OrphanOverASocket, OnlyWhatIsOrphanedIsHandedOut) {
  orphan(device_entry(small_model()));
  Client client = connect();
  const auto reason = [&](const AttachRequest& asked) {
    return client.attach(deadline_in(kWait), asked).error().reason;
  };
  EXPECT_EQ(reason({}), Reason::invalid);
  EXPECT_EQ(reason({"target", "no hex", 0}), Reason::invalid);
  EXPECT_EQ(reason({"draft0", to_hex(fingerprint_), 0}), Reason::not_found);
  EXPECT_EQ(reason({"target", std::string(32, '0'), 0}), Reason::not_found);
  EXPECT_EQ(reason({"target", to_hex(fingerprint_), 1}), Reason::not_found);
  ASSERT_TRUE(groups_.join(2, *Part::make(attachment_of(made_), getpid(), "/run/x.sock", quiet_log())));
  EXPECT_EQ(reason(which()), Reason::not_found) << "its daemon is back";
}

}  // namespace
}  // namespace wcache

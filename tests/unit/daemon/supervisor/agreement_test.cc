#include "daemon/supervisor/agreement.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <thread>

#include "core/fd.h"
#include "ipc/deadline.h"
#include "tests/unit/client/temporary_directory.h"

namespace wcache {
namespace {

using namespace std::chrono_literals;

Key::File file(const std::string& name, std::uint64_t digest) {
  return {name, 100, Digest{0, digest}};
}
GroupFiles page(std::vector<Key::File> files, bool more = false) {
  return {std::move(files), more};
}

GroupPlan plan_of(std::vector<std::uint32_t> ranks, std::uint16_t port = 0) {
  GroupPlan plan;
  plan.layout = Layout::sharded;
  plan.tp_size = 2;
  plan.port = port;
  for (const std::uint32_t rank : ranks) plan.ranks.push_back({rank, "HOST-" + std::to_string(rank)});
  return plan;
}

class AgreementTest : public testing::Test {
 protected:
  LaunchPlan launch(std::uint32_t node = 0, std::uint32_t count = 1) {
    LaunchPlan launch{.run_dir = RunDir::create(directory_ / "run").value(),
                      .groups = {},
                      .mount = std::nullopt,
                      .timeout = 20s,
                      .device_asked = false,
                      .log_level = {},
                      .wcached = {},
                      .wcachefs = {}};
    launch.nodes.count = count;
    launch.nodes.rank = node;
    launch.nodes.master_addr = "127.0.0.1";
    launch.nodes.token = "token";
    return launch;
  }
  const TemporaryDirectory directory_;
};

/// A port that nobody listens at just now.
std::uint16_t free_port() {
  const Fd fd = Fd::adopt(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t nbytes = sizeof address;
  EXPECT_EQ(bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  EXPECT_EQ(getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &nbytes), 0);
  return ntohs(address.sin_port);
}

/// Steps until something is due.
Agreement::Step next(Agreement& agreement) {
  for (const Deadline end = deadline_in(20s); remaining_ms(end) > 0;) {
    Agreement::Step step = agreement.step();
    if (step.agreed || step.published || step.failed) return step;
    pollfd item{agreement.fd(), POLLIN, 0};
    poll(&item, 1, 100);
  }
  ADD_FAILURE() << "nothing came";
  return {};
}

TEST_F(AgreementTest, OnOneNodeTheRanksFilesAreOneKey) {
  const auto agreement = Agreement::start(plan_of({0, 1}), launch()).value();
  EXPECT_EQ(agreement->fd(), -1);
  agreement->add_files(0, page({file("config.json", 1)}, true));
  agreement->add_files(0, page({file("model-rank-0", 2)}));
  EXPECT_FALSE(agreement->step().agreed);
  agreement->add_files(1, page({file("config.json", 1), file("model-rank-1", 3)}));
  const Agreement::Step step = agreement->step();
  ASSERT_TRUE(step.agreed);
  const Key key{Role::target,
                Layout::sharded,
                2,
                {file("config.json", 1), file("model-rank-0", 2), file("model-rank-1", 3)}};
  EXPECT_EQ(step.agreed->fingerprint(), key.fingerprint());
  EXPECT_FALSE(step.published);
  EXPECT_FALSE(agreement->step().agreed) << "once";
  agreement->sealed(1);
  EXPECT_FALSE(agreement->step().published);
  agreement->sealed(0);
  EXPECT_TRUE(agreement->step().published);
  EXPECT_FALSE(agreement->step().published);
  EXPECT_TRUE(agreement->over());
}

TEST_F(AgreementTest, RanksThatDisagreeFailWithTheFieldNamed) {
  const auto agreement = Agreement::start(plan_of({0, 1}), launch()).value();
  agreement->add_files(0, page({file("config.json", 1)}));
  agreement->add_files(1, page({file("config.json", 9)}));
  const Agreement::Step step = agreement->step();
  ASSERT_TRUE(step.failed);
  EXPECT_EQ(step.failed->reason, Reason::mismatch);
  EXPECT_NE(step.failed->message.find("rank 1 and rank 0 disagree in digest of config.json"),
            std::string::npos)
      << step.failed->message;
}

TEST_F(AgreementTest, TwoNodesPublishTogether) {
  const std::uint16_t port = free_port();
  const auto first = Agreement::start(plan_of({0}, port), launch(0, 2)).value();
  const auto second = Agreement::start(plan_of({1}, port), launch(1, 2)).value();
  first->add_files(0, page({file("model-rank-0", 2)}));
  EXPECT_FALSE(first->step().agreed);
  EXPECT_EQ(first->waits_for(), "waiting for the other nodes");
  second->add_files(0, page({file("model-rank-1", 3)}));
  EXPECT_FALSE(second->step().agreed);
  const Agreement::Step one = next(*first), two = next(*second);
  ASSERT_TRUE(one.agreed && two.agreed);
  EXPECT_EQ(one.agreed->files.size(), 2U);
  EXPECT_EQ(one.agreed->fingerprint(), two.agreed->fingerprint());
  first->sealed(0);
  std::this_thread::sleep_for(200ms);
  EXPECT_FALSE(first->step().published) << "the other is not ready";
  EXPECT_FALSE(first->over());
  second->served();  // by daemons of an earlier launcher
  EXPECT_FALSE(second->step().published);
  EXPECT_TRUE(next(*first).published);
  EXPECT_TRUE(next(*second).published);
  EXPECT_TRUE(first->over() && second->over());
}

TEST_F(AgreementTest, AFailureReachesTheOtherNodeEvenWhenItsLauncherEndsAtOnce) {
  const std::uint16_t port = free_port();
  const auto first = Agreement::start(plan_of({0}, port), launch(0, 2)).value();
  auto second = Agreement::start(plan_of({1}, port), launch(1, 2)).value();
  first->add_files(0, page({file("model-rank-0", 2)}));
  second->add_files(0, page({file("model-rank-1", 3)}));
  first->step();
  second->step();
  ASSERT_TRUE(next(*first).agreed);
  ASSERT_TRUE(next(*second).agreed);
  second->fail(Error{Reason::corrupt, "rank 1: a hole"});
  second.reset();
  const Agreement::Step step = next(*first);
  ASSERT_TRUE(step.failed);
  EXPECT_EQ(step.failed->reason, Reason::corrupt);
  EXPECT_NE(step.failed->message.find("node 1, rank 1: rank 1: a hole"), std::string::npos)
      << step.failed->message;
}

TEST_F(AgreementTest, ATakenPortIsAnError) {
  const std::uint16_t port = free_port();
  const auto first = Agreement::start(plan_of({0}, port), launch(0, 2)).value();
  const auto again = Agreement::start(plan_of({0}, port), launch(0, 2));
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().reason, Reason::busy);
}

}  // namespace
}  // namespace wcache

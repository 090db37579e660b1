#include "fs/passthrough.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/fs/fake_backing.h"

namespace wcache {
namespace {

using test::FakeBackingRegistry;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class PassthroughOfAKernel : public testing::Test {
 protected:
  FakeBackingRegistry kernel_;
  Passthrough passthrough_;
};

TEST_F(PassthroughOfAKernel, TriesOutBeforeItIsUsed) {
  passthrough_.offer(true);
  EXPECT_FALSE(passthrough_.available());
  EXPECT_EQ(passthrough_.acquire(100, 7), 0);
  passthrough_.release(100);
  passthrough_.try_out(kernel_, 9);
  EXPECT_TRUE(passthrough_.available());
  EXPECT_EQ(passthrough_.reason(), "");
  EXPECT_THAT(kernel_.removed, ElementsAre(1));  // the trial
}

TEST_F(PassthroughOfAKernel, OneIdForEachInodeUntilItsLastRelease) {
  passthrough_.offer(true);
  passthrough_.try_out(kernel_, 9);
  const int id = passthrough_.acquire(100, 7);
  EXPECT_GT(id, 0);
  EXPECT_EQ(passthrough_.acquire(100, 7), id);
  const int other = passthrough_.acquire(101, 8);
  EXPECT_NE(other, id);
  EXPECT_EQ(passthrough_.registered(), 2u);
  passthrough_.release(100);
  EXPECT_EQ(kernel_.ids.count(id), 1u);
  passthrough_.release(100);
  EXPECT_EQ(kernel_.ids.count(id), 0u);
  EXPECT_GT(passthrough_.acquire(100, 7), other);  // again, from new
  passthrough_.release(100);
  passthrough_.release(101);
  passthrough_.release(101);  // one too many is no matter
  EXPECT_THAT(kernel_.ids, IsEmpty());
}

TEST_F(PassthroughOfAKernel, AnInodeThatWasRefusedStaysSoUntilItsLastRelease) {
  passthrough_.offer(true);
  passthrough_.try_out(kernel_, 9);
  kernel_.refuse_with = EMFILE;
  EXPECT_EQ(passthrough_.acquire(100, 7), 0);
  kernel_.refuse_with = 0;
  EXPECT_EQ(passthrough_.acquire(100, 7), 0);  // the kernel would refuse to mix
  EXPECT_GT(passthrough_.acquire(101, 7), 0);
  passthrough_.release(100);
  passthrough_.release(100);
  EXPECT_GT(passthrough_.acquire(100, 7), 0);
}

TEST_F(PassthroughOfAKernel, TheReasonSaysWhatIsMissing) {
  passthrough_.offer(false);
  EXPECT_THAT(passthrough_.reason(), HasSubstr(WCACHE_HAVE_PASSTHROUGH ? "6.9" : "3.17"));
  passthrough_.try_out(kernel_, 9);
  EXPECT_FALSE(passthrough_.available());
  EXPECT_EQ(kernel_.next, 1);  // not even tried
}

TEST_F(PassthroughOfAKernel, RightsAreFoundMissingByTheTrial) {
  passthrough_.offer(true);
  kernel_.refuse_with = EPERM;
  passthrough_.try_out(kernel_, 9);
  EXPECT_FALSE(passthrough_.available());
  EXPECT_THAT(passthrough_.reason(), HasSubstr("CAP_SYS_ADMIN"));
}

}  // namespace
}  // namespace wcache

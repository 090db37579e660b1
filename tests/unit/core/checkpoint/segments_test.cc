#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/checkpoint/checkpoint.h"

namespace wcache {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TensorInfo at(std::uint64_t offset, std::uint64_t nbytes) {
  return {"t", "U8", {nbytes}, offset, nbytes};
}

TEST(Segments, AFileWithoutTensorsIsOne) {
  EXPECT_THAT(segments_of(10, {}), ElementsAre(Segment{0, 10}));
  EXPECT_THAT(segments_of(10, {at(10, 0)}), ElementsAre(Segment{0, 10}));
  EXPECT_THAT(segments_of(0, {}), IsEmpty());
}

TEST(Segments, HeaderTensorsGapsAndTail) {
  EXPECT_THAT(segments_of(40, {at(8, 4), at(12, 0), at(12, 8), at(24, 8)}),
              ElementsAre(Segment{0, 8}, Segment{8, 4}, Segment{12, 8}, Segment{20, 4}, Segment{24, 8},
                          Segment{32, 8}));
  EXPECT_THAT(segments_of(12, {at(0, 12)}), ElementsAre(Segment{0, 12}));
}

}  // namespace
}  // namespace wcache

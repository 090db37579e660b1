#include "fs/open_mode.h"

#include <gtest/gtest.h>

namespace wcache {
namespace {

TEST(OpenModeTable, EveryKindWithEveryCapability) {
  constexpr auto P = OpenMode::passthrough;
  constexpr auto D = OpenMode::direct;
  constexpr auto C = OpenMode::cached;
  struct Row {
    NodeKind kind;
    OpenMode nothing, mmap, passthrough, both;
  };
  for (const Row& row : {
           Row{NodeKind::file, C, D, P, P},
           Row{NodeKind::manifest, C, D, P, P},
           Row{NodeKind::tensor, C, D, C, D},
           Row{NodeKind::node_status, D, D, D, D},
           Row{NodeKind::entry_status, D, D, D, D},
           Row{NodeKind::readme, C, C, C, C},
           Row{NodeKind::fingerprint_json, C, C, C, C},
           Row{NodeKind::manifest_json, C, C, C, C},
       }) {
    EXPECT_EQ(open_mode(row.kind, {false, false}), row.nothing) << static_cast<int>(row.kind);
    EXPECT_EQ(open_mode(row.kind, {false, true}), row.mmap) << static_cast<int>(row.kind);
    EXPECT_EQ(open_mode(row.kind, {true, false}), row.passthrough) << static_cast<int>(row.kind);
    EXPECT_EQ(open_mode(row.kind, {true, true}), row.both) << static_cast<int>(row.kind);
  }
}

}  // namespace
}  // namespace wcache

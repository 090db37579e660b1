#include "client/status_text.h"

#include <gtest/gtest.h>

namespace wcache {
namespace {

NodeStatus sample() {
  RankStatus rank;
  rank.state = State::ready;
  rank.pid = 11;
  rank.device_uuid = "HOST-0";
  rank.tier = "host";
  rank.pages = "huge";
  rank.fill_path = "io_uring-direct";
  rank.survives = true;
  GroupStatus ready;
  ready.role = "target";
  ready.name = "model";
  ready.fingerprint = "00112233445566778899aabbccddeeff";
  ready.state = State::ready;
  ready.path = "/mnt/wcache/target/00112233445566778899aabbccddeeff";
  ready.source = "/models/model";
  ready.nbytes = std::uint64_t{3} << 30;
  ready.tensors = 12;
  ready.since = 1000;
  ready.holders = {{50, "vllm", 1010}};
  ready.ranks = {rank};
  GroupStatus failed;
  failed.role = "target";
  failed.name = "other\x1b[31m";
  failed.state = State::failed;
  failed.reason = "corrupt";
  failed.message = "model.safetensors: hole";
  NodeStatus node;
  node.run_dir = "/run/wcache";
  node.mount = MountStatus{"/mnt/wcache", 9, true, "", {}};
  node.groups = {ready, failed};
  return node;
}

TEST(StatusText, ATableForPeople) {
  EXPECT_EQ(status_text(sample(), 1070),
            "run directory /run/wcache, mounted at /mnt/wcache (wcachefs pid 9, passthrough)\n"
            "\n"
            "ROLE    NAME        STATE             SIZE     TENSORS  HOLDERS  AGE         FINGERPRINT\n"
            "target  model       ready             3.0 GiB  12       1        1 min 10 s  "
            "00112233445566778899aabbccddeeff\n"
            "  at /mnt/wcache/target/00112233445566778899aabbccddeeff\n"
            "  from /models/model\n"
            "  rank 0, pid 11, HOST-0, host, huge pages, filled by io_uring-direct\n"
            "  held by pid 50 (vllm) for 1 min 0 s\n"
            "target  other?[31m  failed (corrupt)  -        -        0        -           -\n"
            "  model.safetensors: hole\n");
}

TEST(StatusText, SaysWhatIsUnsure) {
  NodeStatus node = sample();
  node.mount = MountStatus{"/mnt/wcache", 9, false, "no rights", {}};
  node.groups[0].holders_complete = false;
  node.groups[0].ranks[0].survives = false;
  node.silent = {"/run/wcache/launcher_7.sock"};
  const std::string text = status_text(node, 1070);
  for (const char* part : {"no passthrough: no rights", "1+?", "mappings do not outlive the mount",
                           "there may be more holders", "no answer from /run/wcache/launcher_7.sock"})
    EXPECT_NE(text.find(part), std::string::npos) << part;
}

TEST(StatusText, ARankOnADeviceSaysHowItIsShared) {
  NodeStatus node = sample();
  RankStatus& rank = node.groups[0].ranks[0];
  rank.device_uuid = "GPU-1";
  rank.tier = "cuda";
  rank.pages = "";
  rank.ipc_kind = "cuda-vmm";
  EXPECT_NE(
      status_text(node, 1070).find("  rank 0, pid 11, GPU-1, cuda, cuda-vmm, filled by io_uring-direct\n"),
      std::string::npos);
  rank.ipc_kind = "cuda-ipc";
  rank.context = true;
  rank.device_nbytes = std::uint64_t{4} << 30;
  rank.survives = false;
  EXPECT_NE(status_text(node, 1070)
                .find("cuda-ipc, filled by io_uring-direct, 4.0 GiB on the device, a context on the device, "
                      "mappings do not outlive the daemon\n"),
            std::string::npos);
}

TEST(StatusText, AFillShowsHowFarItIs) {
  NodeStatus node = sample();
  node.groups[0].state = State::filling;
  node.groups[0].ranks[0].filled = std::uint64_t{1} << 30;
  node.groups[0].ranks[0].rate = std::uint64_t{1} << 29;
  EXPECT_NE(status_text(node, 1070).find("1.0 GiB of 3.0 GiB (33 %), 512.0 MiB/s"), std::string::npos);
}

TEST(ListText, ALineForEachGroup) {
  EXPECT_EQ(list_text(sample()),
            "target  00112233445566778899aabbccddeeff  ready             3.0 GiB  model\n"
            "target  -                                 failed (corrupt)  -        other?[31m\n");
}

}  // namespace
}  // namespace wcache

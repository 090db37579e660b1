#include "client/device_choice.h"

#include <gtest/gtest.h>

namespace wcache {
namespace {

const std::string kFirst = "GPU-aaaaaaaa-0000-0000-0000-000000000001";
const std::string kSecond = "GPU-aaaaaaaa-0000-0000-0000-000000000002";
const std::string kThird = "GPU-bbbbbbbb-0000-0000-0000-000000000003";
const std::string kSlice = "MIG-cccccccc-0000-0000-0000-000000000004";

ReportedDevice device(const std::string& uuid) {
  return {uuid, "NVIDIA X", uuid.starts_with("MIG-"), std::uint64_t{80} << 30, true, ComputeMode::open};
}

DeviceReport report_of(std::vector<ReportedDevice> devices) {
  DeviceReport report;
  report.driver = "13.0";
  report.devices = std::move(devices);
  return report;
}

DeviceReport trouble(DeviceTrouble which) {
  return trouble_report(which, Error{Reason::unsupported, "what was wrong", "what to do"});
}

/// A machine whose CUDA_VISIBLE_DEVICES leaves `visible` of `all`; MIG instances show only when asked for.
struct Machine {
  DeviceReport all = report_of({device(kFirst), device(kSecond), device(kThird)});
  DeviceReport visible = report_of({device(kThird), device(kFirst)});
  std::vector<ReportedDevice> slices;
  int asked = 0;

  Result<DeviceChoice> choose(const std::string& word, std::size_t ranks, const std::string& ipc = "") {
    const Result<DeviceWish> wish = parse_device_wish(word, ipc);
    if (!wish) return fail(wish.error());
    return choose_devices(*wish, ranks, [this](const DeviceView& view) {
      ++asked;
      if (view.as_set) return visible;
      return view.only.empty() ? all : report_of(slices);
    });
  }
};

std::vector<std::string> uuids_of(const Result<DeviceChoice>& choice) {
  if (!choice) return {choice.error().message};
  std::vector<std::string> uuids;
  for (const ChosenDevice& one : choice->devices) uuids.push_back(one.uuid);
  return uuids;
}

using Uuids = std::vector<std::string>;

TEST(DeviceChoice, HostAsksNobody) {
  Machine machine;
  const auto choice = machine.choose("host", 2);
  ASSERT_TRUE(choice);
  EXPECT_FALSE(choice->on_device());
  EXPECT_TRUE(choice->asked);
  EXPECT_EQ(machine.asked, 0);
}

TEST(DeviceChoice, CudaIsWhatIsVisibleInItsOrder) {
  Machine machine;
  EXPECT_EQ(uuids_of(machine.choose("cuda", 1)), Uuids{kThird});
  EXPECT_EQ(uuids_of(machine.choose("cuda", 2)), (Uuids{kThird, kFirst}));
  EXPECT_TRUE(machine.choose("cuda", 1)->asked);
  const auto few = machine.choose("cuda", 3);
  ASSERT_FALSE(few);
  EXPECT_EQ(few.error().reason, Reason::invalid);
  EXPECT_EQ(few.error().key, "--device");
  EXPECT_NE(few.error().hint.find(kThird), std::string::npos);
}

TEST(DeviceChoice, NamedDevicesAreExactlyThoseVisibleOrNot) {
  Machine machine;
  EXPECT_EQ(uuids_of(machine.choose("cuda:" + kSecond + "," + kFirst, 2)), (Uuids{kSecond, kFirst}));
  EXPECT_EQ(uuids_of(machine.choose("cuda:GPU-b", 1)), Uuids{kThird}) << "the beginning is enough";
}

TEST(DeviceChoice, NamesThatDoNotNameOneDeviceARankAreInvalid) {
  Machine machine;
  for (const auto& [word, ranks] :
       std::vector<std::pair<std::string, std::size_t>>{{"cuda:GPU-dddddddd", 1},
                                                        {"cuda:GPU-aaaaaaaa", 1},
                                                        {"cuda:" + kFirst, 2},
                                                        {"cuda:" + kFirst + "," + kSecond, 1},
                                                        {"cuda:" + kFirst + "," + kFirst, 2},
                                                        {"cuda:" + kFirst + "," + kFirst.substr(0, 40), 2},
                                                        {"cuda:", 1},
                                                        {"cuda:0", 1},
                                                        {"cuda:" + kFirst + ",", 1},
                                                        {"cuda,host", 1},
                                                        {"gpu", 1}}) {
    const auto choice = machine.choose(word, ranks);
    ASSERT_FALSE(choice) << word;
    EXPECT_EQ(choice.error().reason, Reason::invalid) << word;
    EXPECT_EQ(choice.error().key, "--device") << word;
  }
  EXPECT_EQ(machine.choose("cuda:GPU-d", 1).error().hint,
            "there are: " + kFirst + " (NVIDIA X), " + kSecond + " (NVIDIA X), " + kThird + " (NVIDIA X)");
}

TEST(DeviceChoice, AMigInstanceIsFoundThoughTheDriverShowsAnother) {
  Machine machine;
  machine.slices = {device(kSlice)};
  EXPECT_EQ(uuids_of(machine.choose("cuda:" + kSlice, 1)), Uuids{kSlice});
  machine.all = trouble(DeviceTrouble::no_device);
  EXPECT_EQ(uuids_of(machine.choose("cuda:" + kSlice, 1)), Uuids{kSlice});
  EXPECT_EQ(machine.choose("cuda:MIG-dddddddd-0000-0000-0000-000000000004", 1).error().reason,
            Reason::unsupported);
}

TEST(DeviceChoice, TheBeginningOfAMigInstancesNameMightBeThatOfAnother) {
  Machine machine;
  machine.slices = {device(kSlice)};
  const auto choice = machine.choose("cuda:MIG-cccccccc", 1);
  ASSERT_FALSE(choice);
  EXPECT_EQ(choice.error().reason, Reason::invalid);
  EXPECT_EQ(choice.error().key, "--device");
}

TEST(DeviceChoice, NamesAreComparedWithoutRegardToCase) {
  Machine machine;
  EXPECT_EQ(uuids_of(machine.choose("cuda:gpu-BBBB", 1)), Uuids{kThird});
  EXPECT_EQ(uuids_of(machine.choose("cuda:GPU-AAAAAAAA-0000-0000-0000-000000000002", 1)), Uuids{kSecond});
}

TEST(DeviceChoice, WhatWasAskedForAndCannotBeHadIsUnsupportedWithItsReason) {
  for (const DeviceTrouble which :
       {DeviceTrouble::no_driver, DeviceTrouble::stub, DeviceTrouble::no_answer}) {
    Machine machine{.all = trouble(which), .visible = trouble(which), .slices = {}};
    for (const std::string word : {"cuda", "cuda:GPU-aaaaaaaa"}) {
      const auto choice = machine.choose(word, 1);
      ASSERT_FALSE(choice);
      EXPECT_EQ(choice.error().reason, Reason::unsupported);
      EXPECT_EQ(choice.error().message, "what was wrong");
      EXPECT_EQ(choice.error().hint, "what to do");
    }
  }
  Machine machine;
  machine.visible.devices[0].compute_mode = ComputeMode::prohibited;
  EXPECT_EQ(machine.choose("cuda", 1).error().reason, Reason::unsupported);
  machine.visible.devices[0].compute_mode = ComputeMode::exclusive;
  EXPECT_EQ(uuids_of(machine.choose("cuda", 1)), Uuids{kThird}) << "the user knows";
}

TEST(DeviceChoice, TheDefaultIsCudaWhereItAnswers) {
  Machine machine;
  const auto choice = machine.choose("", 2);
  EXPECT_EQ(uuids_of(choice), (Uuids{kThird, kFirst}));
  EXPECT_FALSE(choice->asked);
  EXPECT_EQ(choice->note, "");
}

TEST(DeviceChoice, TheDefaultIsHostWithANoteUnlessThereIsNoDriverAtAll) {
  Machine machine{.all = {}, .visible = trouble(DeviceTrouble::no_driver), .slices = {}};
  EXPECT_EQ(uuids_of(machine.choose("", 1)), Uuids{});
  EXPECT_EQ(machine.choose("", 1)->note, "");
  for (const DeviceTrouble which : {DeviceTrouble::stub, DeviceTrouble::too_old, DeviceTrouble::no_device,
                                    DeviceTrouble::no_start, DeviceTrouble::no_answer}) {
    machine.visible = trouble(which);
    EXPECT_EQ(uuids_of(machine.choose("", 1)), Uuids{});
    EXPECT_EQ(machine.choose("", 1)->note, "weights are held in host memory: what was wrong");
  }
  machine = {};
  EXPECT_NE(machine.choose("", 3)->note.find("3 ranks on this node need"), std::string::npos);
  machine.visible.devices[1].compute_mode = ComputeMode::exclusive;
  EXPECT_EQ(uuids_of(machine.choose("", 1)), Uuids{kThird}) << "the other one is not of concern";
  EXPECT_NE(machine.choose("", 2)->note.find("exclusive-process"), std::string::npos);
  machine.visible.devices[1].compute_mode = ComputeMode::prohibited;
  EXPECT_NE(machine.choose("", 2)->note.find("prohibited"), std::string::npos);
}

TEST(DeviceChoice, SharingIsByDescriptorsWhereTheDeviceHasThem) {
  Machine machine;
  machine.visible.devices[1].vmm = false;
  const auto choice = machine.choose("cuda", 2);
  ASSERT_TRUE(choice);
  EXPECT_EQ(choice->devices,
            (std::vector<ChosenDevice>{{kThird, DeviceIpc::vmm}, {kFirst, DeviceIpc::legacy}}));
  EXPECT_EQ(machine.choose("cuda", 1, "legacy")->devices.front().ipc, DeviceIpc::legacy);
  EXPECT_EQ(machine.choose("cuda", 1, "vmm")->devices.front().ipc, DeviceIpc::vmm);
  for (const std::string word : {"cuda", ""}) {
    const auto refused = machine.choose(word, 2, "vmm");
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().reason, Reason::unsupported);
    EXPECT_EQ(refused.error().key, "--ipc");
  }
}

TEST(DeviceChoice, SharingIsOfDevicesOnly) {
  Machine machine;
  EXPECT_EQ(machine.choose("host", 1, "vmm").error().key, "--ipc");
  EXPECT_EQ(machine.choose("cuda", 1, "both").error().key, "--ipc");
  EXPECT_EQ(machine.choose("", 1, "legacy")->devices.front().ipc, DeviceIpc::legacy);
  machine.visible = trouble(DeviceTrouble::no_driver);
  const auto refused = machine.choose("", 1, "legacy");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().reason, Reason::invalid);
  EXPECT_EQ(refused.error().key, "--ipc");
}

}  // namespace
}  // namespace wcache

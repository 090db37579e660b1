#include "daemon/device_report.h"

#include <gtest/gtest.h>

namespace wcache {
namespace {

TEST(DeviceReport, DevicesComeBackAsTheyWere) {
  DeviceReport report;
  report.driver = "13.0";
  report.devices = {
      {"GPU-11111111-2222-3333-4444-555555555555", "NVIDIA \"X\"", false, std::uint64_t{80} << 30, true,
       ComputeMode::open},
      {"MIG-11111111-2222-3333-4444-555555555556", "NVIDIA X", true, 1, false, ComputeMode::exclusive},
      {"GPU-11111111-2222-3333-4444-555555555557", "\xff", false, 1, false, ComputeMode::prohibited}};
  const Result<DeviceReport> again = device_report_of(to_json(report));
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(again->driver, "13.0");
  report.devices[2].name = "\xef\xbf\xbd";  // no UTF-8, but no reason to fail either
  EXPECT_EQ(again->devices, report.devices);
  EXPECT_FALSE(again->trouble);
}

TEST(DeviceReport, ATroubleComesBackWithItsError) {
  for (const DeviceTrouble trouble :
       {DeviceTrouble::no_driver, DeviceTrouble::stub, DeviceTrouble::too_old, DeviceTrouble::no_device,
        DeviceTrouble::no_start, DeviceTrouble::no_answer}) {
    const auto again = device_report_of(
        to_json(trouble_report(trouble, Error{Reason::unsupported, "what was wrong", "what to do"})));
    ASSERT_TRUE(again);
    EXPECT_EQ(again->trouble, trouble);
    EXPECT_EQ(again->error.reason, Reason::unsupported);
    EXPECT_EQ(again->error.message, "what was wrong");
    EXPECT_EQ(again->error.hint, "what to do");
    EXPECT_TRUE(again->devices.empty());
  }
}

TEST(DeviceReport, AnythingElseIsAnError) {
  for (const char* text : {"", "{}", "[]", R"({"driver":"13.0"})", R"({"driver":13,"devices":[]})",
                           R"({"driver":"13.0","devices":[{"uuid":"GPU-1"}]})", R"({"error":{}})"})
    EXPECT_EQ(device_report_of(text).error().reason, Reason::internal) << text;
}

}  // namespace
}  // namespace wcache

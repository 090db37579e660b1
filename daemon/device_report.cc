#include "daemon/device_report.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

namespace wcache {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array kModes = {ComputeMode::open, ComputeMode::exclusive, ComputeMode::prohibited};
constexpr std::array kTroubles = {DeviceTrouble::no_driver, DeviceTrouble::stub,
                                  DeviceTrouble::too_old,   DeviceTrouble::no_device,
                                  DeviceTrouble::no_start,  DeviceTrouble::no_answer};

/// The value of that name; the fallback for a word of a later version.
template <class Values, class Value>
Value value_of(const Values& values, const std::string& word, Value fallback) {
  const auto found = std::ranges::find_if(values, [&](Value value) { return to_string(value) == word; });
  return found == values.end() ? fallback : *found;
}

Json json_of(const ReportedDevice& device) {
  return {{"uuid", device.uuid},     {"name", device.name}, {"mig", device.mig},
          {"nbytes", device.nbytes}, {"vmm", device.vmm},   {"compute_mode", to_string(device.compute_mode)}};
}

ReportedDevice device_of(const Json& row) {
  ReportedDevice device;
  row.at("uuid").get_to(device.uuid);
  row.at("name").get_to(device.name);
  row.at("mig").get_to(device.mig);
  row.at("nbytes").get_to(device.nbytes);
  row.at("vmm").get_to(device.vmm);
  device.compute_mode = value_of(kModes, row.at("compute_mode").get<std::string>(), ComputeMode::prohibited);
  return device;
}

}  // namespace

std::string_view to_string(ComputeMode mode) {
  switch (mode) {
    case ComputeMode::open:
      return "default";
    case ComputeMode::exclusive:
      return "exclusive-process";
    case ComputeMode::prohibited:
      break;
  }
  return "prohibited";
}

std::string_view to_string(DeviceTrouble trouble) {
  switch (trouble) {
    case DeviceTrouble::no_driver:
      return "no-driver";
    case DeviceTrouble::stub:
      return "stub";
    case DeviceTrouble::too_old:
      return "too-old";
    case DeviceTrouble::no_device:
      return "no-device";
    case DeviceTrouble::no_start:
      return "no-start";
    case DeviceTrouble::no_answer:
      break;
  }
  return "no-answer";
}

DeviceReport trouble_report(DeviceTrouble trouble, Error error) {
  DeviceReport report;
  report.trouble = trouble;
  report.error = std::move(error);
  return report;
}

std::string to_json(const DeviceReport& report) {
  Json object = Json::object();
  if (report.trouble) {
    object["error"] = {{"reason", to_string(report.error.reason)},
                       {"message", report.error.message},
                       {"hint", report.error.hint},
                       {"case", to_string(*report.trouble)}};
  } else {
    object["driver"] = report.driver;
    object["devices"] = Json::array();
    for (const ReportedDevice& device : report.devices) object["devices"].push_back(json_of(device));
  }
  return object.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<DeviceReport> device_report_of(std::string_view json) {
  try {
    const Json object = Json::parse(json);
    if (object.contains("error")) {
      const Json& error = object.at("error");
      return trouble_report(
          value_of(kTroubles, error.at("case").get<std::string>(), DeviceTrouble::no_start),
          Error{reason_from_string(error.at("reason").get<std::string>()),
                error.at("message").get<std::string>(), error.at("hint").get<std::string>()});
    }
    DeviceReport report;
    object.at("driver").get_to(report.driver);
    for (const Json& row : object.at("devices")) report.devices.push_back(device_of(row));
    return report;
  } catch (const Json::exception& error) {
    return fail(Reason::internal, std::string("'wcached --devices' printed no report of devices: ") + error.what(),
                "does the driver's library print something itself? run 'wcached --devices' to see");
  }
}

}  // namespace wcache

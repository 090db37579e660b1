#include "client/device_choice.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include "core/format.h"

namespace wcache {
namespace {

constexpr std::string_view kNamed = "cuda:";
constexpr std::size_t kUuidLength = 40;  // with the "GPU-" or "MIG-"
constexpr const char* kDeviceWords = "--device takes host, cuda or cuda:UUID[,UUID...]";

/// A UUID as reports spell it: "GPU-" or "MIG-", and small hexadecimal digits.
std::string spelled(std::string_view word) {
  std::string name(word);
  const auto kind = std::min(name.begin() + 4, name.end());
  std::transform(name.begin(), kind, name.begin(), [](unsigned char c) { return std::toupper(c); });
  std::transform(kind, name.end(), kind, [](unsigned char c) { return std::tolower(c); });
  return name;
}

Result<std::vector<std::string>> split_names(std::string_view list) {
  std::vector<std::string> names;
  for (;;) {
    const std::size_t comma = std::min(list.find(','), list.size());
    const std::string name = spelled(list.substr(0, comma));
    if (name.starts_with("MIG-") && name.size() != kUuidLength)
      return fail(Reason::invalid,
                  "'" + printable(name) +
                      "' is not the whole UUID of a MIG instance, and of several the driver "
                      "shows the first alone",
                  "'nvidia-smi -L' lists them", "--device");
    if (!name.starts_with("GPU-") && !name.starts_with("MIG-"))
      return fail(Reason::invalid, "'" + printable(name) + "' is no UUID of a device",
                  "devices are named GPU-... and MIG-..., as 'nvidia-smi -L' and 'wcached --devices' say",
                  "--device");
    names.push_back(name);
    if (comma == list.size()) return names;
    list.remove_prefix(comma + 1);
  }
}

std::string list_of(const std::vector<ReportedDevice>& devices) {
  std::string text;
  for (const ReportedDevice& device : devices)
    text += (text.empty() ? "" : ", ") + device.uuid + " (" + printable(device.name) + ")";
  return text.empty() ? "none" : text;
}

std::string count_of(std::size_t count, const char* what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

Error trouble_of(const DeviceReport& report) {
  Error error = report.error;
  error.reason = Reason::unsupported;
  error.key = "--device";
  return error;
}

std::vector<ReportedDevice> named(const std::vector<ReportedDevice>& devices, const std::string& name) {
  std::vector<ReportedDevice> found;
  for (const ReportedDevice& device : devices) {
    if (device.uuid == name) return {device};
    if (device.uuid.starts_with(name)) found.push_back(device);
  }
  return found;
}

/// The device of that name. Of several MIG instances the driver shows the first alone, unless it is told
/// which.
Result<ReportedDevice> find_device(const DeviceReport& all, const std::string& name, const AskDevices& ask) {
  std::vector<ReportedDevice> found = named(all.devices, name);
  if (found.empty() && name.starts_with("MIG-"))
    found = named(ask({.as_set = false, .only = name}).devices, name);
  if (found.size() == 1) return std::move(found.front());
  if (found.empty())
    return fail(Reason::invalid, "no CUDA device " + printable(name) + " is here",
                "there are: " + list_of(all.devices), "--device");
  return fail(
      Reason::invalid,
      count_of(found.size(), "CUDA device") + " are named " + printable(name) + "...: " + list_of(found),
      "give more of the UUID", "--device");
}

/// Exactly those that were named, whatever CUDA_VISIBLE_DEVICES says.
Result<std::vector<ReportedDevice>> named_devices(const DeviceWish& wish, std::size_t ranks,
                                                  const AskDevices& ask) {
  if (wish.names.size() != ranks)
    return fail(Reason::invalid,
                "--device names " + count_of(wish.names.size(), "device") + " for " +
                    count_of(ranks, "rank") + " on this node",
                "name one a rank", "--device");
  const DeviceReport all = ask({.as_set = false, .only = ""});
  if (all.trouble && all.trouble != DeviceTrouble::no_device) return fail(trouble_of(all));
  std::vector<ReportedDevice> devices;
  for (const std::string& name : wish.names) {
    Result<ReportedDevice> device = find_device(all, name, ask);
    if (!device) return fail(all.trouble ? trouble_of(all) : device.error());
    if (std::ranges::find(devices, *device) != devices.end())
      return fail(Reason::invalid, "--device names " + device->uuid + " twice", "every rank has its own",
                  "--device");
    devices.push_back(std::move(*device));
  }
  return devices;
}

Result<std::vector<ReportedDevice>> visible_devices(std::size_t ranks, const AskDevices& ask) {
  DeviceReport visible = ask({});
  if (visible.trouble) return fail(trouble_of(visible));
  if (visible.devices.size() < ranks)
    return fail(Reason::invalid,
                count_of(ranks, "rank") + " on this node need as many CUDA devices, and " +
                    std::to_string(visible.devices.size()) + " can be seen",
                "there are: " + list_of(visible.devices) + "; see CUDA_VISIBLE_DEVICES", "--device");
  visible.devices.resize(ranks);
  return std::move(visible.devices);
}

Status check_mode(const ReportedDevice& device) {
  if (device.compute_mode != ComputeMode::prohibited) return {};
  return fail(Reason::unsupported, device.uuid + " is in prohibited mode and takes no process",
              "nvidia-smi -i " + device.uuid + " -c DEFAULT", "--device");
}

Result<ChosenDevice> chosen(const ReportedDevice& device, const DeviceWish& wish) {
  if (Status usable = check_mode(device); !usable) return fail(usable.error());
  const DeviceIpc ipc = wish.ipc.value_or(device.vmm ? DeviceIpc::vmm : DeviceIpc::legacy);
  if (ipc == DeviceIpc::vmm && !device.vmm)
    return fail(Reason::unsupported, device.uuid + " gives no descriptors of its memory", "use --ipc legacy",
                "--ipc");
  return ChosenDevice{device.uuid, ipc};
}

Result<DeviceChoice> choose(const std::vector<ReportedDevice>& devices, const DeviceWish& wish) {
  DeviceChoice choice;
  choice.ipc = wish.ipc;
  for (const ReportedDevice& device : devices) {
    Result<ChosenDevice> one = chosen(device, wish);
    if (!one) return fail(std::move(one.error()));
    choice.devices.push_back(std::move(*one));
  }
  return choice;
}

/// Host memory in place of devices that the default would have taken.
Result<DeviceChoice> fall_back(const DeviceWish& wish, const std::string& why, bool wonder) {
  if (wish.ipc)
    return fail(Reason::invalid, "--ipc is for CUDA devices, and there is none to use: " + why,
                "leave --ipc out", "--ipc");
  DeviceChoice choice;
  if (wonder) choice.note = "weights are held in host memory: " + why;
  return choice;
}

Result<DeviceChoice> choose_default(const DeviceWish& wish, std::size_t ranks, const AskDevices& ask) {
  DeviceReport report;
  const Result<std::vector<ReportedDevice>> devices =
      visible_devices(ranks, [&](const DeviceView& view) { return report = ask(view); });
  if (!devices) return fall_back(wish, devices.error().message, report.trouble != DeviceTrouble::no_driver);
  for (const ReportedDevice& device : *devices) {
    if (Status usable = check_mode(device); !usable) return fall_back(wish, usable.error().message, true);
    if (device.compute_mode == ComputeMode::exclusive)
      return fall_back(
          wish, device.uuid + " is in exclusive-process mode, which a daemon and an engine cannot share",
          true);
  }
  return choose(*devices, wish);
}

}  // namespace

Result<DeviceWish> parse_device_wish(const std::string& device, const std::string& ipc) {
  DeviceWish wish;
  if (device.starts_with(kNamed)) {
    Result<std::vector<std::string>> names = split_names(std::string_view(device).substr(kNamed.size()));
    if (!names) return fail(std::move(names.error()));
    wish.kind = DeviceWish::Kind::cuda;
    wish.names = std::move(*names);
  } else if (device == "cuda") {
    wish.kind = DeviceWish::Kind::cuda;
  } else if (device == "host") {
    wish.kind = DeviceWish::Kind::host;
  } else if (!device.empty()) {
    return fail(Reason::invalid, "unknown device '" + printable(device) + "'", kDeviceWords, "--device");
  }
  if (ipc.empty()) return wish;
  if (ipc != "vmm" && ipc != "legacy")
    return fail(Reason::invalid, "unknown kind of sharing '" + printable(ipc) + "'",
                "--ipc takes vmm or legacy", "--ipc");
  if (wish.kind == DeviceWish::Kind::host)
    return fail(Reason::invalid, "--ipc is for CUDA devices: files in host memory need none",
                "leave --ipc out", "--ipc");
  wish.ipc = ipc == "vmm" ? DeviceIpc::vmm : DeviceIpc::legacy;
  return wish;
}

Result<DeviceChoice> choose_devices(const DeviceWish& wish, std::size_t ranks, const AskDevices& ask) {
  if (wish.kind == DeviceWish::Kind::automatic) return choose_default(wish, ranks, ask);
  Result<DeviceChoice> choice = DeviceChoice{};
  if (wish.kind == DeviceWish::Kind::cuda) {
    const auto devices = wish.names.empty() ? visible_devices(ranks, ask) : named_devices(wish, ranks, ask);
    if (!devices) return fail(devices.error());
    choice = choose(*devices, wish);
  }
  if (choice) choice->asked = true;
  return choice;
}

}  // namespace wcache

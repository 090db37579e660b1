#include "tests/fake_cuda/config.h"

#include <charconv>
#include <cstdio>
#include <fstream>
#include <functional>

namespace wcache::fake_cuda {

namespace {

template <class Number>
bool parse_number(std::string_view text, Number& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size();
}

bool parse_bool(std::string_view text, bool& out) {
  out = text == "1";
  return text == "0" || text == "1";
}

bool set_attribute(std::string_view number, std::string_view value, std::map<int, int>& attributes) {
  int key = 0;
  return parse_number(number, key) && key > 0 && key < CU_DEVICE_ATTRIBUTE_MAX &&
         parse_number(value, attributes[key]);
}

constexpr std::string_view kAttribute = "attribute.";

bool set_of_device(std::string_view key, std::string_view value, DeviceConfig& device) {
  if (key == "uuid" || key == "mig_parent") {
    const std::optional<CUuuid> uuid = parse_uuid(value);
    if (!uuid) return false;
    key == "uuid" ? void(device.uuid = *uuid) : void(device.mig_parent = *uuid);
    return true;
  }
  if (key == "name") return device.name = value, true;
  if (key == "pci") return device.pci = value, true;
  if (key == "memory") return parse_number(value, device.memory);
  return key.starts_with(kAttribute) &&
         set_attribute(key.substr(kAttribute.size()), value, device.attributes);
}

bool set(std::string_view key, std::string_view value, Config& config) {
  if (key == "devices") return true;  // was first
  if (key == "driver_version") return parse_number(value, config.driver_version);
  if (key == "init_error") return parse_number(value, config.init_error);
  if (key == "granularity")
    return parse_number(value, config.granularity) && config.granularity % 4096 == 0 &&
           config.granularity > 0;
  if (key == "copy_delay_us") return parse_number(value, config.copy_delay_us);
  if (key == "read_only_access") return parse_bool(value, config.read_only_access);
  if (key == "peer_access") return parse_bool(value, config.peer_access);
  if (key == "context_bytes") return parse_number(value, config.context_bytes);
  if (key.starts_with(kAttribute)) {
    for (DeviceConfig& device : config.devices) {
      if (!set_attribute(key.substr(kAttribute.size()), value, device.attributes)) return false;
    }
    return true;
  }
  constexpr std::string_view kDevice = "device.";
  const std::size_t dot = key.find('.', kDevice.size());
  std::size_t n = 0;
  if (!key.starts_with(kDevice) || dot == std::string_view::npos) return false;
  if (!parse_number(key.substr(kDevice.size(), dot - kDevice.size()), n) || n >= config.devices.size())
    return false;
  return set_of_device(key.substr(dot + 1), value, config.devices[n]);
}

bool make_devices(std::string_view count, Config& config) {
  int devices = 0;
  if (!parse_number(count, devices) || devices < 0 || devices > 64) return false;
  for (int n = 0; n < devices; ++n) {
    DeviceConfig device;
    device.uuid = default_uuid(n);
    char pci[32];
    std::snprintf(pci, sizeof pci, "0000:%02x:00.0", static_cast<unsigned>(n + 1));
    device.pci = pci;
    config.devices.push_back(std::move(device));
  }
  return true;
}

}  // namespace

CUuuid default_uuid(int n) {
  CUuuid uuid = *parse_uuid("fa4e0000-0000-4000-8000-000000000000");
  uuid.bytes[15] = static_cast<char>(n);
  return uuid;
}

std::optional<CUuuid> parse_uuid(std::string_view text) {
  CUuuid uuid = {};
  std::string digits;
  for (const char c : text) {
    if (c != '-') digits.push_back(c);
  }
  if (digits.size() != 2 * sizeof uuid.bytes) return std::nullopt;
  for (std::size_t i = 0; i < sizeof uuid.bytes; ++i) {
    unsigned value = 0;
    const char* begin = digits.data() + 2 * i;
    if (std::from_chars(begin, begin + 2, value, 16).ptr != begin + 2) return std::nullopt;
    uuid.bytes[i] = static_cast<char>(value);
  }
  return uuid;
}

const std::map<int, int>& default_attributes() {
  static const std::map<int, int> attributes = {
      {CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1},
      {CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 2},
      {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
      {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9},
      {CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1},
      {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
      {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1},
      {CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED, 1},
      {CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1},
      {CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, 1},
  };
  return attributes;
}

std::optional<Config> read_config(const std::filesystem::path& path, std::string& error) {
  std::vector<std::pair<std::string, std::string>> lines;
  std::string count = "1";
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    if (line.empty() || line.front() == '#') continue;
    const std::size_t equals = line.find('=');
    if (equals == std::string::npos) {
      error = "config: no '=' in: " + line;
      return std::nullopt;
    }
    lines.emplace_back(line.substr(0, equals), line.substr(equals + 1));
    if (lines.back().first == "devices") count = lines.back().second;
  }
  Config config;
  if (!make_devices(count, config)) {
    error = "config: devices is no number from 0 to 64: " + count;
    return std::nullopt;
  }
  for (const auto& [key, value] : lines) {
    if (!set(key, value, config)) {
      error = "config: unknown key or bad value: " + key + "=" + value;
      return std::nullopt;
    }
  }
  return config;
}

}  // namespace wcache::fake_cuda

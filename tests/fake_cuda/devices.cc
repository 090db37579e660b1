#include "tests/fake_cuda/devices.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdio>
#include <string>

namespace wcache::fake_cuda {

namespace {

/// As nvidia-smi prints it.
std::string name_of(const DeviceConfig& device) {
  std::string text = device.mig_parent ? "MIG-" : "GPU-";
  for (std::size_t i = 0; i < sizeof device.uuid.bytes; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(device.uuid.bytes[i]));
    text += digits;
  }
  return text;
}

std::string lower_after_prefix(std::string_view entry) {
  std::string text(entry);
  for (std::size_t i = 4; i < text.size(); ++i) {
    text[i] = static_cast<char>(std::tolower(static_cast<unsigned char>(text[i])));
  }
  return text;
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

}  // namespace

Devices::Devices(const Config& config, const char* visible) : all_(config.devices) {
  if (!visible) {
    for (int place = 0; place < static_cast<int>(all_.size()); ++place) add(place);
    return;
  }
  std::string_view rest = visible;
  while (!rest.empty()) {
    const std::size_t comma = rest.find(',');
    const std::optional<int> place = named(trimmed(rest.substr(0, comma)));
    if (!place || ordinal(*place)) return;
    add(*place);
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
  }
}

void Devices::add(int place) {
  const auto is_mig = [this](int p) { return all_[static_cast<std::size_t>(p)].mig_parent.has_value(); };
  if (is_mig(place) && std::any_of(places_.begin(), places_.end(), is_mig)) return;
  places_.push_back(place);
}

std::optional<int> Devices::named(std::string_view entry) const {
  int index = -1;
  const auto [end, error] = std::from_chars(entry.data(), entry.data() + entry.size(), index);
  if (error == std::errc() && end == entry.data() + entry.size()) {
    return index >= 0 && index < static_cast<int>(all_.size()) ? std::optional(index) : std::nullopt;
  }
  if (!entry.starts_with("GPU-") && !entry.starts_with("MIG-")) return std::nullopt;
  const std::string prefix = lower_after_prefix(entry);
  std::optional<int> found;
  for (std::size_t place = 0; place < all_.size(); ++place) {
    if (!name_of(all_[place]).starts_with(prefix)) continue;
    if (found) return std::nullopt;
    found = static_cast<int>(place);
  }
  return found;
}

std::optional<CUdevice> Devices::ordinal(int place) const {
  const auto at = std::find(places_.begin(), places_.end(), place);
  if (at == places_.end()) return std::nullopt;
  return static_cast<CUdevice>(at - places_.begin());
}

const DeviceConfig& Devices::at(CUdevice device) const {
  return all_[static_cast<std::size_t>(place(device))];
}

int Devices::attribute(CUdevice device, int attribute) const {
  const DeviceConfig& config = at(device);
  if (const auto set = config.attributes.find(attribute); set != config.attributes.end()) return set->second;
  unsigned domain = 0, bus = 0, slot = 0;
  std::sscanf(config.pci.c_str(), "%x:%x:%x", &domain, &bus, &slot);
  if (attribute == CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID) return static_cast<int>(domain);
  if (attribute == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID) return static_cast<int>(bus);
  if (attribute == CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID) return static_cast<int>(slot);
  const auto standard = default_attributes().find(attribute);
  return standard == default_attributes().end() ? 0 : standard->second;
}

}  // namespace wcache::fake_cuda

#pragma once

#include <cuda.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace wcache::fake_cuda {

/// One device, as `device.<n>.<key>=<value>` lines of the configuration say.
struct DeviceConfig {
  CUuuid uuid = {};                   ///< uuid: 32 hex digits, dashes allowed. Default: default_uuid(n)
  std::optional<CUuuid> mig_parent;   ///< mig_parent: this is a MIG instance of the GPU of that UUID
  std::string name = "Fake GPU";      ///< name
  std::string pci;                    ///< pci: default 0000:<n+1 in hex>:00.0
  std::uint64_t memory = 1ull << 30;  ///< memory: bytes in all
  std::map<int, int> attributes;      ///< attribute.<number>: over what default_attributes says
};

/// The whole configuration: lines `key=value`; empty lines and those that begin with # say nothing. An
/// unknown key or a value that is none makes cuInit give 999 (and `errors` say why), since a test that
/// misspells it would prove nothing.
struct Config {
  int driver_version = 13000;  ///< driver_version
  int init_error = 0;          ///< init_error: what cuInit gives; 34 (stub library): each other call too
  std::uint64_t granularity = 2ull << 20;  ///< granularity of allocations, in bytes
  std::uint64_t copy_delay_us = 0;         ///< copy_delay_us: how long each copy waits in its stream
  bool read_only_access = true;            ///< read_only_access=0: cuMemSetAccess with READ gives 801
  bool peer_access = false;                ///< peer_access=1: memory may be used from other devices
  std::uint64_t context_bytes = 0;         ///< context_bytes: device memory that each process's context takes
  std::vector<DeviceConfig> devices;  ///< devices: how many, default 1. `attribute.<number>` sets all of them
};

/// fa4e0000-0000-4000-8000-0000000000<n in hex>
CUuuid default_uuid(int n);

/// 32 hex digits with or without dashes.
std::optional<CUuuid> parse_uuid(std::string_view text);

/// What the attributes of facts are where the configuration does not say; all others are 0.
const std::map<int, int>& default_attributes();

/// A file that is not there is an empty one. On failure `error` says what is wrong.
std::optional<Config> read_config(const std::filesystem::path& path, std::string& error);

}  // namespace wcache::fake_cuda

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/device_handle.h"
#include "core/entry_plan.h"
#include "core/manifest.h"
#include "core/slab_plan.h"
#include "daemon/memory/arena.h"

namespace wcache::test {

struct TestFile {
  std::string name;
  std::string bytes;
  FileKind kind = FileKind::other;
  std::vector<TensorInfo> tensors = {};
  std::int64_t mtime_ns = 1'700'000'000'000'000'000;
};

/// A device of the test's own: its slabs are memfds.
struct TestDevice {
  std::string ipc_kind = "cuda-vmm";
  std::string uuid = "GPU-00000000-0000-0000-0000-000000000000";
  std::uint64_t slab_nbytes = std::uint64_t{64} << 10;
};

struct TestEntryOptions {
  Role role = Role::target;
  Layout layout = Layout::checkpoint;
  std::string name = "tiny";
  std::uint32_t rank = 0;
  std::uint32_t tp_size = 1;
  std::optional<Fingerprint> fingerprint;  ///< instead of the one that the content has
  bool memfd = false;                      ///< sealed memfds even where a private tmpfs is possible
  std::optional<TestDevice> device = {};   ///< the weights are there
  std::uint32_t node_ranks = 0;            ///< 0: as many as tp_size
};

/// What a daemon holds once it has filled: read-only memory, as it goes over the socket.
struct TestEntry {
  Fingerprint fingerprint;
  SealedArena arena;  ///< without the images that are on a device
  std::uint64_t manifest_nbytes = 0;

  EntryPlan plan;
  std::vector<ImageDigests> digests;
  std::vector<std::string> bytes;  ///< of every image of the plan

  SlabPlan slab_plan;
  std::vector<Fd> slabs;              ///< cuda-vmm
  std::vector<DeviceHandle> handles;  ///< cuda-ipc: each byte is 1 + the slab's number
  std::string instance;

  std::string directory() const { return to_hex(fingerprint); }
  std::vector<Fd> images() const;       ///< duplicates
  Fd manifest() const;                  ///< a duplicate
  std::vector<Fd> slab_copies() const;  ///< duplicates
};

/// What the slabs of the entry's plan hold, each as long as it is.
std::vector<std::string> slab_bytes(const TestEntry& entry);

/// Builds an entry of `files` the way a daemon does, without a disk. A failure aborts.
TestEntry make_test_entry(std::vector<TestFile> files, const TestEntryOptions& options = {});

/// Deterministic bytes; another seed gives others.
std::string test_bytes(std::size_t nbytes, std::uint64_t seed);

/// A weight file of one-dimensional "U8" tensors `names`, each of `tensor_nbytes`, behind a header of
/// `head_nbytes`.
TestFile test_weights(const std::string& name, const std::vector<std::string>& names,
                      std::uint64_t tensor_nbytes, std::uint64_t head_nbytes = 64);

/// A small model: config.json, a sub-directory, two weight files.
std::vector<TestFile> small_model();

}  // namespace wcache::test

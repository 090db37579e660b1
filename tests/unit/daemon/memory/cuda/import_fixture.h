#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "daemon/memory/cuda/import.h"
#include "daemon/memory/cuda/load.h"
#include "tests/fake_cuda/fixture.h"

namespace wcache {

/// A table of slabs on a fake machine, and slabs of child processes to put into it.
class Import : public testing::FakeCudaTest {
 protected:
  static constexpr std::size_t kNbytes = 2 * kGranularity;

  static std::string uuid(int device) { return "GPU-" + testing::FakeGpu::default_uuid(device); }

  OfferedSlab offer_of(const testing::ChildProcess& child, std::size_t nbytes = kNbytes) const {
    OfferedSlab offer;
    offer.device_uuid = uuid(0);
    offer.instance = "instance of " + std::to_string(child.pid());
    offer.nbytes = nbytes;
    offer.fd = child.fd();
    if (child.fd() >= 0) return offer;
    std::memcpy(offer.handle.emplace().data(), &child.report().handle, sizeof(DeviceHandle));
    return offer;
  }

  static std::vector<unsigned char> read(const ImportedSlab& slab, std::uint64_t offset, std::size_t nbytes) {
    std::vector<unsigned char> bytes(nbytes);
    const Status done = slab.read(offset, std::as_writable_bytes(std::span(bytes)));
    EXPECT_TRUE(done) << done.error().message;
    return bytes;
  }

  static Error error_of(Result<ImportedSlab> import) {
    EXPECT_FALSE(import);
    return import ? Error{} : import.error();
  }

  std::vector<std::string> leaks() const { return gpu_.leaks(getpid()); }

  ImportedSlabs slabs_{machine_driver()};
};

}  // namespace wcache

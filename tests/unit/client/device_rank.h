#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/test_entry.h"

namespace wcache::test {

/// The model that device_rank serves: what it must give back.
inline std::vector<TestFile> device_model() {
  return {{"config.json", "{}"},
          test_weights("a.safetensors", {"a.first", "a.second", "a.third"}, 100'000),
          test_weights("b.safetensors", {"b.only"}, (std::uint64_t{3} << 20) + 5),
          test_weights("c.safetensors", {"c.0", "c.1", "c.2", "c.3", "c.4", "c.5"}, (1U << 20) + 256)};
}

}  // namespace wcache::test

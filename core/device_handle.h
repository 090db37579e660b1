#pragma once

#include <array>
#include <cstddef>

namespace wcache {

/// The 64 bytes of a CUipcMemHandle.
using DeviceHandle = std::array<std::byte, 64>;

}  // namespace wcache

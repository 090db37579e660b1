#pragma once

#include <cstdint>

#include "core/result.h"

namespace wcache {

/// Whether `fd`, received from another process, is memory that nobody can change any more: a regular file of
/// exactly `nbytes`, opened for reading only, and either of a read-only tmpfs or a memfd sealed against
/// writing, shrinking and growing. Reason::corrupt names what is not so. It guards against a peer's mistake,
/// not against a hostile one: a writable tmpfs behind a read-only mount looks the same.
Status check_sealed(int fd, std::uint64_t nbytes);

}  // namespace wcache

#pragma once

#include <cstddef>
#include <cstdint>

namespace wcache {

/// Bytes of a page of this machine.
std::uint64_t page_nbytes();

/// `nbytes` rounded up to whole pages.
std::uint64_t whole_pages(std::uint64_t nbytes);

/// How many bytes of this process's mapping that begins at `begin` are mapped by 2 MiB entries of shared
/// memory (ShmemPmdMapped of /proc/self/smaps). 0 where nothing is, or where smaps cannot be read.
std::uint64_t huge_mapped_nbytes(const std::byte* begin);

}  // namespace wcache

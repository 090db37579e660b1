#include "daemon/memory/pages.h"

#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <string>

namespace wcache {

std::uint64_t page_nbytes() {
  return static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
}

std::uint64_t whole_pages(std::uint64_t nbytes) {
  const std::uint64_t page = page_nbytes();
  return (nbytes + page - 1) / page * page;
}

std::uint64_t huge_mapped_nbytes(const std::byte* begin) {
  std::ifstream smaps("/proc/self/smaps");
  bool inside = false;
  for (std::string line; std::getline(smaps, line);) {
    std::uint64_t first = 0;
    std::uint64_t last = 0;
    std::uint64_t kib = 0;
    if (std::sscanf(line.c_str(), "%" SCNx64 "-%" SCNx64, &first, &last) == 2)
      inside = first == reinterpret_cast<std::uintptr_t>(begin);
    else if (inside && std::sscanf(line.c_str(), "ShmemPmdMapped: %" SCNu64, &kib) == 1)
      return kib * 1024;
  }
  return 0;
}

}  // namespace wcache

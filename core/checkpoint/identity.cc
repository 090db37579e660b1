#include "core/checkpoint/checkpoint.h"

namespace wcache {

FileIdentity FileIdentity::of(const struct stat& st) {
  const auto ns = [](const timespec& time) {
    return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
  };
  return {st.st_dev, st.st_ino, static_cast<std::uint64_t>(st.st_size), ns(st.st_mtim), ns(st.st_ctim)};
}

}  // namespace wcache

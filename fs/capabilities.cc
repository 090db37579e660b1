#include "fs/capabilities.h"

#include <fuse_lowlevel.h>

#include <array>
#include <cstdint>
#include <string_view>

namespace wcache {
namespace {

struct Capability {
  std::uint64_t flag;
  std::string_view name;
};

constexpr std::array kWanted{
    Capability{FUSE_CAP_ASYNC_READ, "async_read"},
    Capability{FUSE_CAP_ASYNC_DIO, "async_dio"},
    Capability{FUSE_CAP_PARALLEL_DIROPS, "parallel_dirops"},
    Capability{FUSE_CAP_READDIRPLUS, "readdirplus"},
    Capability{FUSE_CAP_READDIRPLUS_AUTO, "readdirplus_auto"},
    Capability{FUSE_CAP_CACHE_SYMLINKS, "cache_symlinks"},
    Capability{FUSE_CAP_EXPLICIT_INVAL_DATA, "explicit_inval_data"},
};

// Ours is read-only and its bytes never change: locks stay in the kernel, and nothing is spliced (slower than
// replying from a mapping). AUTO_INVAL_DATA would win over the explicit form.
constexpr std::array kUnwanted{
    Capability{FUSE_CAP_AUTO_INVAL_DATA, ""}, Capability{FUSE_CAP_SPLICE_READ, ""},
    Capability{FUSE_CAP_SPLICE_WRITE, ""},    Capability{FUSE_CAP_SPLICE_MOVE, ""},
    Capability{FUSE_CAP_POSIX_LOCKS, ""},     Capability{FUSE_CAP_FLOCK_LOCKS, ""},
    Capability{FUSE_CAP_ATOMIC_O_TRUNC, ""},  Capability{FUSE_CAP_WRITEBACK_CACHE, ""},
    Capability{FUSE_CAP_HANDLE_KILLPRIV, ""}, Capability{FUSE_CAP_IOCTL_DIR, ""},
};

// Parallel mmap readers of files that are not passed through: read-ahead is background work in the kernel's
// terms.
constexpr unsigned kMaxBackground = 64;
constexpr unsigned kCongestion = 48;

#if FUSE_USE_VERSION >= FUSE_MAKE_VERSION(3, 17)
bool want(fuse_conn_info& conn, std::uint64_t flag) {
  return fuse_set_feature_flag(&conn, flag);
}
void unwant(fuse_conn_info& conn, std::uint64_t flag) {
  fuse_unset_feature_flag(&conn, flag);
}
#else
bool want(fuse_conn_info& conn, std::uint64_t flag) {
  if ((conn.capable & flag) == 0) return false;
  conn.want |= static_cast<unsigned>(flag);
  return true;
}
void unwant(fuse_conn_info& conn, std::uint64_t flag) {
  conn.want &= ~static_cast<unsigned>(flag);
}
#endif

}  // namespace

Negotiated negotiate_capabilities(fuse_conn_info& conn) {
  Negotiated result;
  for (const Capability& capability : kUnwanted) unwant(conn, capability.flag);
  for (const Capability& capability : kWanted)
    if (want(conn, capability.flag)) result.summary += " " + std::string(capability.name);
#if FUSE_USE_VERSION >= FUSE_MAKE_VERSION(3, 17)
  result.direct_mmap = want(conn, FUSE_CAP_DIRECT_IO_ALLOW_MMAP);
  if (result.direct_mmap) result.summary += " direct_io_allow_mmap";
#endif
  conn.max_background = kMaxBackground;
  conn.congestion_threshold = kCongestion;
  result.summary = "protocol " + std::to_string(conn.proto_major) + "." + std::to_string(conn.proto_minor) +
                   ":" + result.summary;
  return result;
}

}  // namespace wcache

#include <cerrno>
#include <exception>

#include "fs/file_system.h"

namespace wcache {
namespace {

FileSystem& file_system_of(fuse_req_t request) {
  return *static_cast<FileSystem*>(fuse_req_userdata(request));
}

/// The one border between the library, which knows no exceptions, and a handler. A handler that throws has
/// its request answered with EIO by the request's own destructor.
template <auto Handler, class... Arguments>
void serve(fuse_req_t raw, Arguments... arguments) {
  FileSystem& fs = file_system_of(raw);
  try {
    (fs.*Handler)(Request(raw), arguments...);
  } catch (const std::exception& e) {
    fs.log().error("answering a FUSE request: {}", e.what());
  }
}

/// A read-only mount is refused its modifying calls by the kernel; without `ro` they end here.
template <class... Arguments>
void refuse(fuse_req_t raw, Arguments...) {
  Request(raw).error(EROFS);
}

}  // namespace

fuse_lowlevel_ops FileSystem::operations() {
  fuse_lowlevel_ops ops{};
  ops.init = [](void* self, fuse_conn_info* conn) { static_cast<FileSystem*>(self)->init(*conn); };
  ops.lookup = serve<&FileSystem::lookup>;
  ops.forget = serve<&FileSystem::forget>;
  ops.forget_multi = serve<&FileSystem::forget_multi>;
  ops.getattr = serve<&FileSystem::getattr>;
  ops.readlink = serve<&FileSystem::readlink>;
  ops.access = serve<&FileSystem::access>;
  ops.statfs = serve<&FileSystem::statfs>;
  ops.open = serve<&FileSystem::open>;
  ops.read = serve<&FileSystem::read>;
  ops.release = serve<&FileSystem::release>;
  ops.opendir = serve<&FileSystem::opendir>;
  ops.readdir = serve<&FileSystem::readdir>;
  ops.readdirplus = serve<&FileSystem::readdirplus>;
  ops.releasedir = serve<&FileSystem::releasedir>;
  ops.getxattr = serve<&FileSystem::getxattr>;
  ops.listxattr = serve<&FileSystem::listxattr>;
  // A handler that is missing would be answered with ENOSYS, which the kernel remembers for the whole
  // connection.
  ops.setattr = refuse;
  ops.mknod = refuse;
  ops.mkdir = refuse;
  ops.unlink = refuse;
  ops.rmdir = refuse;
  ops.symlink = refuse;
  ops.rename = refuse;
  ops.link = refuse;
  ops.write = refuse;
  ops.create = refuse;
  ops.fallocate = refuse;
  ops.setxattr = refuse;
  ops.removexattr = refuse;
  return ops;
}

}  // namespace wcache

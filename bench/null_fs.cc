// wcache-null-fs DIR: a libfuse file system that does nothing: one file, one attribute, constant answers, the
// loop of wcachefs. What a request costs here is what the kernel and libfuse cost. Runs until it is
// unmounted.
#include "bench/null_fs.h"

#include <fuse_lowlevel.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

namespace wcache::bench {
namespace {

constexpr fuse_ino_t kInode = 2;
constexpr double kForever = 365.0 * 24 * 3600;  // seconds, as wcachefs says of what never changes

struct stat attributes_of(fuse_ino_t inode) {
  struct stat st {};
  st.st_ino = inode;
  st.st_mode = inode == FUSE_ROOT_ID ? S_IFDIR | 0555 : S_IFREG | 0444;
  st.st_nlink = 1;
  return st;
}

void lookup(fuse_req_t request, fuse_ino_t, const char* name) {
  if (std::strcmp(name, kNullFile) != 0) {
    fuse_reply_err(request, ENOENT);
    return;
  }
  fuse_entry_param entry{};
  entry.ino = kInode;
  entry.attr = attributes_of(kInode);
  entry.attr_timeout = kForever;
  entry.entry_timeout = kForever;
  fuse_reply_entry(request, &entry);
}

void getattr(fuse_req_t request, fuse_ino_t inode, fuse_file_info*) {
  const struct stat st = attributes_of(inode);
  fuse_reply_attr(request, &st, kForever);
}

void open(fuse_req_t request, fuse_ino_t, fuse_file_info* file) {
  file->noflush = 1;
  fuse_reply_open(request, file);
}

void release(fuse_req_t request, fuse_ino_t, fuse_file_info*) {
  fuse_reply_err(request, 0);
}

void getxattr(fuse_req_t request, fuse_ino_t, const char* name, std::size_t size) {
  const std::size_t length = std::strlen(kAttributeValue);
  if (std::strcmp(name, kAttribute) != 0)
    fuse_reply_err(request, ENODATA);
  else if (size == 0)
    fuse_reply_xattr(request, length);
  else if (size < length)
    fuse_reply_err(request, ERANGE);
  else
    fuse_reply_buf(request, kAttributeValue, length);
}

int serve(const char* directory) {
  fuse_lowlevel_ops operations{};
  operations.lookup = lookup;
  operations.getattr = getattr;
  operations.open = open;
  operations.release = release;
  operations.getxattr = getxattr;
  std::string name = "wcache-null-fs";
  char* argv[] = {name.data(), nullptr};
  fuse_args arguments = FUSE_ARGS_INIT(1, argv);
  fuse_session* session = fuse_session_new(&arguments, &operations, sizeof operations, nullptr);
  fuse_opt_free_args(&arguments);
  if (session == nullptr) return 1;
  int result = 1;
  if (fuse_session_mount(session, directory) == 0) {
    fuse_loop_config* config = fuse_loop_cfg_create();
    fuse_loop_cfg_set_max_threads(config, 10);
    fuse_loop_cfg_set_idle_threads(config, static_cast<unsigned>(-1));
    result = fuse_session_loop_mt(session, config) == 0 ? 0 : 1;
    fuse_loop_cfg_destroy(config);
    fuse_session_unmount(session);
  }
  fuse_session_destroy(session);
  return result;
}

}  // namespace
}  // namespace wcache::bench

int main(int argc, char** argv) {
  if (argc == 2) return wcache::bench::serve(argv[1]);
  std::fprintf(stderr, "usage: wcache-null-fs DIR\n");
  return 2;
}

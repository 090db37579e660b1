#pragma once

#include <fuse_lowlevel.h>
#include <spdlog/logger.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>

#include "fs/entry_holders.h"
#include "fs/in_flight.h"
#include "fs/node_stat.h"
#include "fs/open_files.h"
#include "fs/passthrough.h"
#include "fs/request.h"
#include "fs/status_thread.h"
#include "fs/tree.h"
#include "fs/xattrs.h"

namespace wcache {

/// The answers to the kernel's requests. Each handler answers its request before it returns, but those that
/// ask other processes: the status thread answers the open of a status.json and the attribute `holders`,
/// threads of the entry's parts (fs/device_reads.h) the reads of files that are on a device. Called from
/// several threads at once; holds no lock while replying.
class FileSystem {
 public:
  struct Settings {
    uid_t uid = 0;  ///< owner of every node: the mounter
    gid_t gid = 0;
    std::string mount;  ///< for the paths in status files
    std::int64_t started_ns = 0;
    std::string control_socket = {};  ///< for the handles of orphans
    AskDaemons ask_daemons = {};      ///< who holds an entry; empty: only what can be known here
  };
  /// Everything is borrowed and must outlive the session that serves this.
  FileSystem(Settings settings, Tree& tree, OpenFiles& open_files, Passthrough& passthrough,
             StatusThread& status, Mappings mappings, spdlog::logger& log);

  /// The table for fuse_session_new, whose user data is a FileSystem.
  static fuse_lowlevel_ops operations();

  /// True once the kernel has asked for a session and the answer is being sent.
  bool initialised() const { return initialised_.load(std::memory_order_acquire); }

  void init(fuse_conn_info& conn);
  void lookup(Request request, fuse_ino_t parent, const char* name);
  void forget(Request request, fuse_ino_t inode, std::uint64_t count);
  void forget_multi(Request request, std::size_t count, fuse_forget_data* forgets);
  void getattr(Request request, fuse_ino_t inode, fuse_file_info* file);
  void readlink(Request request, fuse_ino_t inode);
  void access(Request request, fuse_ino_t inode, int mask);
  void statfs(Request request, fuse_ino_t inode);
  void open(Request request, fuse_ino_t inode, fuse_file_info* file);
  void read(Request request, fuse_ino_t inode, std::size_t size, off_t offset, fuse_file_info* file);
  void release(Request request, fuse_ino_t inode, fuse_file_info* file);
  void opendir(Request request, fuse_ino_t inode, fuse_file_info* file);
  void readdir(Request request, fuse_ino_t inode, std::size_t size, off_t cookie, fuse_file_info* file);
  void readdirplus(Request request, fuse_ino_t inode, std::size_t size, off_t cookie, fuse_file_info* file);
  void releasedir(Request request, fuse_ino_t inode, fuse_file_info* file);
  void getxattr(Request request, fuse_ino_t inode, const char* name, std::size_t size);
  void listxattr(Request request, fuse_ino_t inode, std::size_t size);

  /// Before the session ends: waits until no read of a device is under way. Parts that have lost their
  /// daemons answer at once. False when it took longer: those reads are never answered. Later ones fail.
  bool end_device_reads(std::chrono::milliseconds wait) { return device_reads_.close(wait); }

  spdlog::logger& log() { return log_; }

 private:
  struct stat stat_of_node(const Node& node, const TreeSnapshot& tree);
  fuse_entry_param entry_of(const Node& node, const TreeSnapshot& tree);
  void reply_open(Request request, OpenFile opened, fuse_file_info file);
  void open_text(Request request, const Node& node, fuse_file_info file,
                 std::shared_ptr<const std::string> text);
  std::string entry_status(const Entry& entry, const std::vector<Holder>& holders);
  void later(Request request, std::function<void(Request)> answer);  ///< on the status thread
  void read_device(Request request, const Part& part, std::uint32_t row, std::uint64_t offset,
                   std::size_t nbytes);
  XattrContext xattr_context(const TreeSnapshot& tree, uid_t asker);
  EntryHolders holders(const Entry& entry);
  static void reply_xattr(Request request, std::string_view value, std::size_t size);

  const Settings settings_;
  Tree& tree_;
  OpenFiles& open_files_;
  Passthrough& passthrough_;
  StatusThread& status_;
  const Mappings mappings_;
  spdlog::logger& log_;
  InFlight device_reads_;
  std::atomic<bool> direct_mmap_ = false;
  std::atomic<bool> initialised_ = false;
};

}  // namespace wcache

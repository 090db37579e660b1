#include "daemon/supervisor/made_run_dir.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <iterator>
#include <string>
#include <system_error>
#include <vector>

#include "core/fd.h"
#include "ipc/listener.h"

namespace wcache {
namespace {

std::string mark_of(const RunDir& run_dir) {
  return run_dir.file("made-by-launcher");
}

Status leave_mark(const RunDir& run_dir) {
  const Result<Fd> mark = open_file(mark_of(run_dir).c_str(), O_WRONLY | O_CREAT, 0600);
  if (!mark) return fail(mark.error());
  return {};
}

}  // namespace

Result<RunDir> make_run_dir(std::string_view path) {
  const bool made =
      mkdir(std::string(path).c_str(), 0700) == 0;  // otherwise create() tells why not, if that matters
  Result<RunDir> run_dir = RunDir::create(path);
  if (!run_dir || !made) return run_dir;
  if (Status marked = leave_mark(*run_dir); !marked) return fail(marked.error());
  return run_dir;
}

void sweep_run_dir(const RunDir& run_dir) {
  if (const Result<std::vector<RunDir::Socket>> sockets = run_dir.sockets()) {
    for (const RunDir::Socket& socket : *sockets) remove_stale_socket(socket.path);
  }
  std::vector<std::string> locks;
  std::error_code error;
  std::filesystem::directory_iterator file(run_dir.path(), error);
  for (; !error && file != std::filesystem::directory_iterator(); file.increment(error)) {
    if (file->path().string().ends_with(".sock.lock")) locks.push_back(file->path().string());
  }
  for (const std::string& lock : locks) remove_stale_socket(lock.substr(0, lock.rfind(".lock")));
}

bool run_dir_was_made(const RunDir& run_dir) {
  return access(mark_of(run_dir).c_str(), F_OK) == 0;
}

void remove_made_run_dir(const RunDir& run_dir) {
  std::error_code error;
  const std::filesystem::directory_iterator files(run_dir.path(), error);
  if (error || std::distance(begin(files), end(files)) != 1) return;
  if (unlink(mark_of(run_dir).c_str()) != 0 || rmdir(run_dir.path().c_str()) == 0) return;
  static_cast<void>(leave_mark(run_dir));  // a newcomer is in it already
}

}  // namespace wcache

#include "fs/open_files.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <utility>

namespace wcache {
namespace {

int parse_int(std::string_view text) {
  const std::size_t begin = text.find_first_of("0123456789");
  if (begin == std::string_view::npos) return 0;
  int value = 0;
  std::from_chars(text.data() + begin, text.data() + text.size(), value);
  return value;
}

}  // namespace

ProcessName process_of_thread(int thread) {
  ProcessName process{thread, {}};
  std::ifstream status("/proc/" + std::to_string(thread) + "/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("Tgid:")) process.pid = parse_int(line);
  std::ifstream comm("/proc/" + std::to_string(process.pid) + "/comm");
  std::getline(comm, process.command);
  return process;
}

std::uint64_t OpenFiles::add(OpenFile file, int thread) {
  auto shared = std::make_shared<const OpenFile>(std::move(file));
  const double now = now_();
  const std::lock_guard lock(mutex_);
  const std::uint64_t handle = next_++;
  files_.emplace(handle, Row{std::move(shared), thread, 0, {}, now});
  return handle;
}

std::shared_ptr<const OpenFile> OpenFiles::find(std::uint64_t handle) const {
  const std::lock_guard lock(mutex_);
  const auto found = files_.find(handle);
  return found == files_.end() ? nullptr : found->second.file;
}

std::shared_ptr<const OpenFile> OpenFiles::remove(std::uint64_t handle) {
  const std::lock_guard lock(mutex_);
  const auto found = files_.find(handle);
  if (found == files_.end()) return nullptr;
  std::shared_ptr<const OpenFile> file = std::move(found->second.file);
  files_.erase(found);
  return file;
}

std::uint64_t OpenFiles::add_directory(OpenDirectory directory) {
  auto shared = std::make_shared<const OpenDirectory>(std::move(directory));
  const std::lock_guard lock(mutex_);
  const std::uint64_t handle = next_++;
  directories_.emplace(handle, std::move(shared));
  return handle;
}

std::shared_ptr<const OpenDirectory> OpenFiles::find_directory(std::uint64_t handle) const {
  const std::lock_guard lock(mutex_);
  const auto found = directories_.find(handle);
  return found == directories_.end() ? nullptr : found->second;
}

void OpenFiles::remove_directory(std::uint64_t handle) {
  std::shared_ptr<const OpenDirectory> gone;  // outlives the lock: it may be an entry's last reference
  const std::lock_guard lock(mutex_);
  const auto found = directories_.find(handle);
  if (found == directories_.end()) return;
  gone = std::move(found->second);
  directories_.erase(found);
}

void OpenFiles::identify(std::uint64_t handle) {
  int thread = 0;
  {
    const std::lock_guard lock(mutex_);
    const auto found = files_.find(handle);
    if (found == files_.end() || found->second.pid != 0 || !found->second.file->node.entry) return;
    thread = found->second.thread;
  }
  identify_row(handle, thread);
}

void OpenFiles::identify_row(std::uint64_t handle, int thread) {
  ProcessName process = process_of_thread(thread);
  const std::lock_guard lock(mutex_);
  const auto found = files_.find(handle);
  if (found == files_.end()) return;
  found->second.pid = process.pid;
  found->second.command = std::move(process.command);
}

std::shared_ptr<const void> OpenFiles::lease(const std::shared_ptr<const Entry>& entry, Holder holder) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t number = next_++;
  leases_.emplace(number, Lease{entry.get(), entry, std::move(holder)});
  return {this, [this, number](const void*) {
            const std::lock_guard guard(mutex_);
            leases_.erase(number);
          }};
}

std::vector<Holder> OpenFiles::holders(const Entry& entry) {
  std::vector<std::pair<std::uint64_t, int>> unknown;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [handle, row] : files_)
      if (row.file->node.entry.get() == &entry && row.pid == 0) unknown.emplace_back(handle, row.thread);
  }
  for (const auto& [handle, thread] : unknown) identify_row(handle, thread);

  std::vector<Holder> holders;
  const auto add = [&](Holder holder) {
    const auto same = std::find_if(holders.begin(), holders.end(),
                                   [&](const Holder& known) { return known.pid == holder.pid; });
    if (same == holders.end())
      holders.push_back(std::move(holder));
    else
      same->since = std::min(same->since, holder.since);
  };
  const std::lock_guard lock(mutex_);
  for (const auto& [handle, row] : files_)
    if (row.file->node.entry.get() == &entry && !row.file->node.is_status())
      add({row.pid, row.command, row.since});
  for (const auto& [number, lease] : leases_)
    if (lease.of(entry)) add(lease.holder);
  std::sort(holders.begin(), holders.end(), [](const Holder& a, const Holder& b) { return a.pid < b.pid; });
  return holders;
}

std::size_t OpenFiles::open_count(const Entry& entry) const {
  const std::lock_guard lock(mutex_);
  std::size_t count = 0;
  for (const auto& [handle, row] : files_)
    count += row.file->node.entry.get() == &entry && !row.file->node.is_status() ? 1 : 0;
  for (const auto& [number, lease] : leases_) count += lease.of(entry) ? 1 : 0;
  return count;
}

std::size_t OpenFiles::size() const {
  const std::lock_guard lock(mutex_);
  return files_.size() + directories_.size();
}

}  // namespace wcache

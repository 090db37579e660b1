#include "daemon/supervisor/mount_watcher.h"

#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <utility>

#include "ipc/client.h"

namespace wcache {
namespace {

constexpr std::chrono::milliseconds kUrgent{50};
constexpr std::chrono::milliseconds kCalm{1000};
constexpr std::chrono::milliseconds kAnswer{2000};

bool is_directory(const std::string& path) {
  struct stat st {};
  return stat(path.c_str(), &st) == 0 && S_ISDIR(st.st_mode);
}

/// Whether an entry is shown, and if so, whether its directory can be seen.
bool is_visible(const MountStatus& mount, const std::string& entry) {
  return std::find(mount.entries.begin(), mount.entries.end(), entry) != mount.entries.end() &&
         is_directory(mount.path + "/" + entry);
}

bool tell_pair(const std::string& socket, const PairRequest& pair) {
  const Deadline deadline = deadline_in(kAnswer);
  Result<Client> client = Client::connect(socket, Purpose::launcher, "wcache preload", deadline);
  return client && client->request<PairReply>(pair, deadline);
}

}  // namespace

struct MountWatcher::Shared {
  explicit Shared(const RunDir& directory) : run_dir(directory) {}

  const RunDir run_dir;
  Fd changed = Fd::adopt(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  std::mutex mutex;
  std::condition_variable wake;
  bool stop = false;
  bool ended = false;
  bool fresh = false;  // `want` came since the last look
  std::vector<std::string> entries;
  bool node = false;
  bool urgent = true;
  PairRequest pair;             // empty: none
  std::int32_t paired_pid = 0;  // the wcachefs that knows of it
  Sighting sighting;
};

MountWatcher::MountWatcher(const RunDir& run_dir) : shared_(std::make_shared<Shared>(run_dir)) {
  std::thread(work, shared_).detach();
}

MountWatcher::~MountWatcher() {
  std::unique_lock lock(shared_->mutex);
  shared_->stop = true;
  shared_->wake.notify_all();
  shared_->wake.wait_for(lock, std::chrono::seconds(1), [&] { return shared_->ended; });
}

void MountWatcher::want(std::vector<std::string> entries, bool node, bool urgent) {
  const std::lock_guard lock(shared_->mutex);
  if (entries == shared_->entries && node == shared_->node && urgent == shared_->urgent) return;
  shared_->entries = std::move(entries);
  shared_->node = node;
  shared_->urgent = urgent;
  shared_->fresh = true;
  shared_->wake.notify_all();
}

void MountWatcher::pair(const PairRequest& pair) {
  const std::lock_guard lock(shared_->mutex);
  if (pair == shared_->pair) return;
  shared_->pair = pair;
  shared_->paired_pid = 0;
  shared_->fresh = true;
  shared_->wake.notify_all();
}

Sighting MountWatcher::sighting() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->sighting;
}

int MountWatcher::fd() const {
  return shared_->changed.get();
}

void MountWatcher::clear() const {
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = read(shared_->changed.get(), &count, sizeof count);
}

void MountWatcher::work(std::shared_ptr<Shared> shared) {
  const RunDir::Socket socket{RunDir::SocketKind::mount, shared->run_dir.mount_socket(), {}, {}, {}};
  std::unique_lock lock(shared->mutex);
  while (!shared->stop) {
    const std::vector<std::string> entries = shared->entries;
    const bool ask_node = shared->node;
    const PairRequest pair = shared->pair;
    std::int32_t paired_pid = shared->paired_pid;
    shared->fresh = false;
    lock.unlock();

    Sighting seen;
    seen.looked = true;
    seen.began = std::chrono::steady_clock::now();
    if (Result<StatusReply> reply = ask_status(socket, deadline_in(kAnswer));
        reply && !reply->mount.path.empty())
      seen.mount = std::move(reply->mount);
    if (ask_node) {
      if (Result<NodeStatus> node = collect_status(shared->run_dir.path(), kAnswer))
        seen.node = std::move(*node);
    }
    for (const std::string& entry : entries) {
      if (seen.mount && is_visible(*seen.mount, entry)) seen.visible.insert(entry);
    }

    if (seen.mount && !pair.draft.empty() && seen.mount->pid != paired_pid && tell_pair(socket.path, pair))
      paired_pid = seen.mount->pid;

    lock.lock();
    if (shared->pair == pair) shared->paired_pid = paired_pid;
    shared->sighting = std::move(seen);
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t put = write(shared->changed.get(), &one, sizeof one);
    shared->wake.wait_for(lock, shared->urgent ? kUrgent : kCalm,
                          [&] { return shared->stop || shared->fresh; });
  }
  shared->ended = true;
  shared->wake.notify_all();
}

}  // namespace wcache

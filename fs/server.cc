#include "fs/server.h"

#include <poll.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <memory>
#include <optional>
#include <utility>

#include "client/node_status_json.h"
#include "fs/control.h"
#include "fs/daemons.h"
#include "fs/entry_holders.h"
#include "fs/file_system.h"
#include "fs/groups.h"
#include "fs/mount_point.h"
#include "fs/notifier.h"
#include "fs/session.h"

namespace wcache {
namespace {

constexpr std::chrono::seconds kInitWait{10};
constexpr std::chrono::seconds kReadsWait{5};
constexpr unsigned kReadAheadKib = 1024;

double unix_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}
std::int64_t unix_time_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

/// The parts of a served mount, in the order they are made; they go in the reverse one.
class Server {
 public:
  Server(const Options& options, const RunDir& run_dir, SocketLock lock, MountPoint mount,
         spdlog::logger& log)
      : options_(options),
        run_dir_(run_dir),
        log_(log),
        lock_(std::move(lock)),
        mount_(std::move(mount)),
        tree_(unix_time_ns),
        open_files_(unix_time),
        status_([this] { return node_status_json(run_dir_.path()); }),
        file_system_(
            {geteuid(), getegid(), mount_.path(), unix_time_ns(), run_dir_.mount_socket(), daemons_holders},
            tree_, open_files_, passthrough_, status_, mappings_of, log) {}

  Status start() {
    Result<std::unique_ptr<Session>> session = Session::start(file_system_, mount_.take_device(), log_);
    if (!session) return fail(std::move(session.error()));
    session_ = std::move(*session);
    if (Status ready = session_->wait_initialised(deadline_in(kInitWait)); !ready) return ready;
    try_passthrough();
    if (Status set = mount_.set_read_ahead(kReadAheadKib); !set) log_.debug("{}", set.error().message);
    kernel_cache_.emplace(session_->raw());
    notifier_.emplace(*kernel_cache_, log_);
    groups_.emplace(tree_, open_files_, *notifier_, mappings_of, unix_time);
    Result<std::unique_ptr<Daemons>> daemons = Daemons::start(run_dir_, *groups_, log_);
    if (!daemons) return fail(std::move(daemons.error()));
    daemons_ = std::move(*daemons);
    Result<std::unique_ptr<Control>> control = Control::start(
        std::move(lock_),
        {[this] { return status(); },
         [this](Role role, const Fingerprint& fingerprint) {
           return groups_->evict_orphan(role, fingerprint);
         },
         [this](Role role, const Fingerprint& fingerprint, std::uint32_t rank, Holder holder) {
           return groups_->hold_orphan(role, fingerprint, rank, std::move(holder));
         },
         [this](const Fingerprint& target, const Fingerprint& draft) { tree_.pair(target, draft); }},
        log_);
    if (!control) return fail(std::move(control.error()));
    control_ = std::move(*control);
    return {};
  }

  int ended_fd() const { return session_->ended_fd(); }

  /// Takes everything down; safe after a start that failed. Nobody may ask any more, then nothing is told to
  /// the kernel any more, then the mount goes, and at last the loop.
  Status stop() {
    control_.reset();
    daemons_.reset();
    status_.stop();
    // Their daemons are lost by now, so that those that wait are answered.
    if (!file_system_.end_device_reads(kReadsWait)) log_.error("reads of a device do not end");
    if (notifier_) notifier_->disarm();
    Result<MountPoint::Unmounted> unmounted = mount_.unmount();
    if (unmounted && *unmounted == MountPoint::Unmounted::lazily)
      log_.info("{} was busy: it is gone from the tree, open files go on", mount_.path());
    Status status;
    if (session_) {
      const SessionEnd end = session_->stop();
      if (end.why == SessionEnd::Why::failed) status = fail_errno("the FUSE session", end.errnum);
    }
    if (!unmounted) return fail(std::move(unmounted.error()));
    return status;
  }

 private:
  MountStatus mount_status() {
    MountStatus status;
    status.path = mount_.path();
    status.pid = getpid();
    status.passthrough = passthrough_.available();
    status.reason = passthrough_.reason();
    const std::shared_ptr<const TreeSnapshot> tree = tree_.snapshot();
    for (const Role role : {Role::target, Role::draft0})
      for (const auto& entry : tree->entries(role)) status.entries.push_back(entry->path());
    for (const auto& target : tree->entries(Role::target))
      if (const std::shared_ptr<Entry> draft = tree->partner(*target))
        status.pairs.push_back({target->directory_name(), draft->directory_name()});
    return status;
  }

  StatusReply status() {
    StatusReply reply;
    reply.pid = getpid();
    reply.ranks = groups_->orphans();
    reply.mount = mount_status();
    return reply;
  }

  void try_passthrough() {
    if (!options_.passthrough) {
      passthrough_.refuse("switched off by the option no_passthrough");
    } else {
      // The answer to any request shows that the kernel has taken our answer to its first one.
      struct statfs st {};
      statfs(mount_.path().c_str(), &st);
      registry_.emplace(session_->device_fd());
      const Fd trial = Fd::adopt(memfd_create("wcachefs-trial", MFD_CLOEXEC));
      passthrough_.try_out(*registry_, trial.get());
    }
    if (passthrough_.available())
      log_.info("files are served by passthrough");
    else
      log_.warn("files are served without passthrough: {}", passthrough_.reason());
  }

  const Options& options_;
  const RunDir run_dir_;
  spdlog::logger& log_;
  SocketLock lock_;
  MountPoint mount_;
  Tree tree_;
  OpenFiles open_files_;
  Passthrough passthrough_;
  StatusThread status_;
  FileSystem file_system_;
  std::optional<DeviceBackingRegistry> registry_;
  std::unique_ptr<Session> session_;
  std::optional<SessionKernelCache> kernel_cache_;
  std::optional<Notifier> notifier_;
  std::optional<Groups> groups_;
  std::unique_ptr<Daemons> daemons_;
  std::unique_ptr<Control> control_;
};

Status wait_for_end(const sigset_t& signals, int ended, spdlog::logger& log) {
  const Fd signal = Fd::adopt(signalfd(-1, &signals, SFD_CLOEXEC));
  if (!signal) return fail_errno("signalfd", errno);
  std::array<pollfd, 2> fds{pollfd{signal.get(), POLLIN, 0}, pollfd{ended, POLLIN, 0}};
  while (poll(fds.data(), fds.size(), -1) < 0)
    if (errno != EINTR) return fail_errno("poll", errno);
  log.info("{}", fds[1].revents != 0 ? "the mount was taken away" : "stopping");
  return {};
}

}  // namespace

Status serve_mount(const Options& options, const RunDir& run_dir, const sigset_t& signals,
                   spdlog::logger& log, const std::function<void()>& mounted) {
  Result<SocketLock> lock = SocketLock::take(run_dir.mount_socket());
  if (!lock) return fail(std::move(lock.error()));
  Result<std::string> path = resolve_mount_point(options.directory);
  if (!path) return fail(std::move(path.error()));
  Result<MountPoint> mount = MountPoint::mount(*path, {options.allow_other}, log);
  if (!mount) return fail(std::move(mount.error()));
  log.info("mounted at {}", *path);
  Server server(options, run_dir, std::move(*lock), std::move(*mount), log);
  Status served = server.start();
  if (served) {
    mounted();
    served = wait_for_end(signals, server.ended_fd(), log);
  }
  const Status stopped = server.stop();
  return served ? stopped : served;
}

}  // namespace wcache

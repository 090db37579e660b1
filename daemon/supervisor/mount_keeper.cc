#include "daemon/supervisor/mount_keeper.h"

#include <signal.h>
#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "core/mount_table.h"

namespace wcache {
namespace {

constexpr std::chrono::milliseconds kTryLock{200};
constexpr std::chrono::milliseconds kFirstPause{100};
constexpr std::chrono::milliseconds kLongestPause{5000};
constexpr std::chrono::seconds kGrace{1};  // for a wcachefs that an earlier supervisor has just started
constexpr std::chrono::seconds kGentleEnd{10};
constexpr std::chrono::seconds kHardEnd{2};

/// The exit codes that tell a reason of one kind only; for the others the program's own words are above.
Reason reason_of_exit(int code) {
  for (const Reason reason : {Reason::invalid, Reason::busy, Reason::over_budget, Reason::timeout}) {
    if (exit_code(reason) == code) return reason;
  }
  return Reason::io;
}

/// As a value of a mount option: the separator and the escape character themselves are escaped.
std::string option_value(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == ',' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

}  // namespace

MountKeeper::MountKeeper(const RunDir& run_dir, MountPlan plan, const LaunchPlan& launch, Console& console)
    : run_dir_(run_dir),
      plan_(std::move(plan)),
      launch_(launch),
      console_(console),
      record_file_(run_dir.file("mount.json")) {}

void MountKeeper::tick(Clock::time_point now, const Sighting& seen) {
  if (error_) return;
  if (!lock_ && now >= try_lock_at_) {
    try_lock_at_ = now + kTryLock;
    Result<SocketLock> lock = SocketLock::take(run_dir_.file("supervisor"));
    if (lock) {
      lock_ = std::move(*lock);
      record_ = read_mount_record(record_file_);
      if (record_) start_at_ = now + kGrace;
    } else if (lock.error().reason != Reason::busy) {
      error_ = lock.error();
      return;
    }
  }
  if (lock_) {
    supervise(now, seen);
  } else {
    follow(seen);
  }
}

/// Takes the path of the mount that is there, unless the user chose another.
bool MountKeeper::same_path(const std::string& other) {
  if (other == plan_.path) return true;
  if (!plan_.chosen) {
    plan_.path = other;
    return true;
  }
  error_ =
      Error{Reason::invalid,
            "the run directory " + run_dir_.path() + " is mounted at " + other + ", not at " + plan_.path,
            "leave --mount out to add to that mount, or use another --run-dir", "--mount"};
  return false;
}

void MountKeeper::follow(const Sighting& seen) {
  if (seen.mount) {
    same_path(seen.mount->path);
  } else if (const std::optional<MountRecord> record = read_mount_record(record_file_)) {
    same_path(record->path);
  }
}

void MountKeeper::supervise(Clock::time_point now, const Sighting& seen) {
  if (process_) {
    if (const std::optional<ExitStatus> status = process_->ended()) return died(now, *status);
    if (seen.mount && seen.mount->pid == process_->pid() && !was_up_) {
      was_up_ = ever_up_ = true;
      failures_ = 0;
    }
    return;
  }
  if (!seen.looked) return;
  if (seen.mount) {
    if (same_path(seen.mount->path)) adopt(*seen.mount);
    if (process_ || error_) return;
  }
  if (now >= start_at_) start(now);
}

void MountKeeper::adopt(const MountStatus& mount) {
  Result<Process> process = Process::attach(mount.pid);
  if (!process) return;  // it has ended since it answered
  process_ = std::move(*process);
  was_up_ = ever_up_ = true;
}

Status MountKeeper::prepare_path() {
  MountRecord record = record_.value_or(MountRecord{plan_.path, plan_.allow_other, {}});
  if (Status made = make_directories(record.path, record.created); !made) {
    remove_directories(record.created);
    return made;
  }
  if (Status written = write_mount_record(record_file_, record); !written) {
    remove_directories(record.created);
    return written;
  }
  record_ = std::move(record);
  return {};
}

void MountKeeper::start(Clock::time_point now) {
  if (record_ && !same_path(record_->path)) return;
  if (Status prepared = prepare_path(); !prepared) {
    error_ = prepared.error();
    if (error_->key.empty()) error_->key = "--mount";
    return;
  }
  std::string options = "run_dir=" + option_value(run_dir_.path());
  if (record_->allow_other) options += ",allow_other";
  if (!launch_.log_level.empty()) options += ",log_level=" + launch_.log_level;
  Result<Process> process = Process::start(launch_.wcachefs, {record_->path, "-f", "-o", options});
  if (!process) {
    error_ = process.error();
    return;
  }
  process_ = std::move(*process);
  started_it_ = true;
  was_up_ = false;
  start_at_ = now;
}

void MountKeeper::died(Clock::time_point now, const ExitStatus& status) {
  const std::string who = "wcachefs (pid " + std::to_string(process_->pid()) + ") of " + plan_.path;
  process_.reset();
  const bool overtaken = status.code == exit_code(Reason::busy);  // another wcachefs is there: look again
  if (!ever_up_ && !overtaken) {
    error_ = Error{reason_of_exit(status.code), who + " ended before it had mounted: " + status.describe(),
                   "its own message is above; wcache doctor tells what this machine lacks"};
    return;
  }
  ++failures_;
  const auto pause = std::min(kLongestPause, kFirstPause * (1U << std::min(failures_ - 1, 10U)));
  start_at_ = now + pause;
  was_up_ = false;
  if (!overtaken) console_.note(who + " ended: " + status.describe() + "; starting another");
}

void MountKeeper::unmount_dead() const {
  const Result<std::vector<MountEntry>> table = read_mount_table();
  const MountEntry* mount = table ? mount_at(*table, record_->path) : nullptr;
  if (mount == nullptr || mount->type != "fuse.wcachefs") return;
  if (umount2(record_->path.c_str(), MNT_DETACH | UMOUNT_NOFOLLOW) == 0) return;
  const char* path = std::getenv("PATH");
  const Result<std::string> helper = find_program("fusermount3", "/usr/bin", path == nullptr ? "" : path);
  if (!helper) return;
  if (const Result<Process> process = Process::start(*helper, {"-u", "-z", record_->path}))
    process->wait(deadline_in(kHardEnd));
}

void MountKeeper::take_down() {
  const Deadline lock_deadline = deadline_in(kHardEnd);
  while (!lock_) {  // its holder is ending, or was killed: nobody else is left
    if (Result<SocketLock> lock = SocketLock::take(run_dir_.file("supervisor"))) {
      lock_ = std::move(*lock);
    } else if (remaining_ms(lock_deadline) == 0) {
      return console_.note("left the mount at " + plan_.path + ": " + lock.error().message);
    } else {
      usleep(20'000);
    }
  }
  record_ = read_mount_record(record_file_);
  if (!record_) return;
  if (!process_ || process_->ended()) {
    const RunDir::Socket socket{RunDir::SocketKind::mount, run_dir_.mount_socket(), {}, {}, {}};
    process_.reset();
    if (const Result<StatusReply> reply = ask_status(socket, deadline_in(kHardEnd))) adopt(reply->mount);
  }
  if (process_) {
    process_->signal(SIGTERM);
    if (!process_->wait(deadline_in(kGentleEnd))) {
      process_->signal(SIGKILL);
      process_->wait(deadline_in(kHardEnd));
    }
    process_.reset();
  }
  unmount_dead();
  remove_directories(record_->created);
  unlink(record_file_.c_str());
  record_.reset();
}

}  // namespace wcache

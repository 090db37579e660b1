#include <signal.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "core/digest_cache.h"
#include "core/format.h"
#include "core/log.h"
#include "daemon/budget.h"
#include "daemon/daemon.h"
#include "daemon/event_loop.h"
#include "daemon/fill/disk.h"
#include "daemon/memory/cuda/devices.h"
#include "daemon/memory/cuda/load.h"
#include "daemon/memory/cuda/loading.h"
#include "daemon/memory/cuda/report.h"
#include "daemon/memory/kernel.h"
#include "daemon/options.h"
#include "daemon/store.h"
#include "ipc/client.h"
#include "ipc/connection.h"
#include "ipc/run_dir.h"

namespace wcache {
namespace {

constexpr std::chrono::seconds kLastWord{2};

/// Signals that end the daemon wait for the loop; those that a vanished launcher or terminal causes do
/// nothing.
Result<Fd> catch_signals() {
  sigset_t ending;
  sigemptyset(&ending);
  sigaddset(&ending, SIGTERM);
  sigaddset(&ending, SIGINT);
  if (sigprocmask(SIG_BLOCK, &ending, nullptr) != 0) return fail_errno("blocking signals", errno);
  for (const int ignored : {SIGPIPE, SIGHUP, SIGTTOU}) signal(ignored, SIG_IGN);
  Fd fd = Fd::adopt(signalfd(-1, &ending, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd) return fail_errno("making a signalfd", errno);
  return fd;
}

/// An entry has a descriptor per file, and may have thousands.
void allow_many_files() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

Result<RunDir> open_run_dir(const DaemonOptions& options) {
  Result<std::string> path = options.run_dir.empty()
                                 ? RunDir::default_path(geteuid(), RunDir::process_environment)
                                 : options.run_dir;
  if (!path) return fail(std::move(path.error()));
  return RunDir::create(*path);
}

std::string log_name(const DaemonOptions& options) {
  return "wcached_" + std::string(to_string(options.group.role)) + "_" + std::to_string(options.rank) + "_" +
         std::to_string(getpid()) + ".log";
}

DigestCache open_digest_cache(spdlog::logger& log) {
  const Result<std::filesystem::path> dir =
      digest_cache_dir([](const char* name) { return std::getenv(name); }, geteuid());
  DigestCache cache = dir ? DigestCache::open(*dir) : DigestCache();
  if (!dir) log.warn("no digest is remembered: {}", dir.error().message);
  if (cache.trouble()) log.warn("no digest is remembered: {}", cache.trouble()->message);
  return cache;
}

Status check_memory(const MemoryNeed& need, std::uint64_t limit) {
  const std::vector<MemoryLimit> machine = machine_memory_limits();
  const std::optional<std::uint64_t> most = limit == 0 ? std::nullopt : std::optional(limit);
  if (need.device_nbytes == 0) return check_budget(need.host_nbytes, most, machine);
  if (Status fits = check_budget(need.host_nbytes + need.staging_nbytes, std::nullopt, machine); !fits)
    return fits;
  return check_budget(need.host_nbytes + need.device_nbytes, most, {});
}

/// The device that the options name, alone: main() has hidden the others. nullopt: host memory.
Result<std::optional<CudaTarget>> open_device(const DaemonOptions& options) {
  if (options.device_uuid.empty()) return std::nullopt;
  CudaTarget target;
  auto driver = load_cuda_driver(cuda_driver_file());
  if (!driver) {
    driver.error().message = options.device_uuid + ": " + driver.error().message;
    return fail(std::move(driver.error()));
  }
  target.driver = std::move(*driver);
  auto device = find_cuda_device(*target.driver, options.device_uuid);
  if (!device) return fail(std::move(device.error()));
  target.device = std::move(*device);
  const Result<DeviceIpc> ipc = choose_ipc(target.device, options.ipc);
  if (!ipc) return fail(ipc.error());
  target.ipc = *ipc;
  target.slab_nbytes = options.slab_nbytes;
  return target;
}

/// WCACHE_FILL_STALL_MS; nothing or empty: the default. For tests.
Result<std::chrono::milliseconds> fill_stall_timeout() {
  const char* const text = std::getenv("WCACHE_FILL_STALL_MS");
  if (text == nullptr || *text == '\0') return FillOptions{}.stall_timeout;
  const Result<std::uint64_t> ms = parse_size(text, "WCACHE_FILL_STALL_MS");
  if (!ms) return fail(ms.error());
  return std::chrono::milliseconds(*ms);
}

/// The parts of loading that touch this machine, put together on the loading thread.
Result<StoredEntry> load(const DaemonOptions& options, spdlog::logger& log, const LoadRequest& request,
                         const LoadEvents& events, std::stop_token stop) {
  const char* word = std::getenv("WCACHE_FILL_PATH");
  const Result<DiskOptions> disk_options = DiskOptions::from_word(word == nullptr ? "" : word);
  if (!disk_options) return fail(disk_options.error());
  const Result<std::chrono::milliseconds> stall_timeout = fill_stall_timeout();
  if (!stall_timeout) return fail(stall_timeout.error());
  const Result<std::optional<CudaTarget>> device = open_device(options);
  if (!device) return fail(device.error());
  const MachineDisk disk = open_machine_disk(*disk_options);
  const MemoryKernel kernel = MemoryKernel::real();
  DigestCache cache = open_digest_cache(log);
  const LoadMachine machine{kernel,
                            *disk.disk,
                            disk.note,
                            cache,
                            [&](const MemoryNeed& need) { return check_memory(need, options.memory_limit); },
                            *device ? &**device : nullptr,
                            *stall_timeout};
  return load_entry(request, machine, events, std::move(stop));
}

/// For errors before there is a Daemon.
void tell(std::optional<Connection>& launcher, const DaemonOptions& options, const Error& error) {
  if (!launcher) return;
  RankStatus status;
  status.role = to_string(options.group.role);
  status.rank = options.rank;
  status.source = options.group.route.target;
  status.pid = getpid();
  status.state = State::failed;
  status.reason = to_string(error.reason);
  status.message = error.message;
  status.hint = error.hint;
  send_message(*launcher, Envelope{0, std::move(status)}, deadline_in(kLastWord));
}

/// What a Daemon borrows.
struct Surroundings {
  RunDir run_dir;
  std::string log_file;
  std::shared_ptr<spdlog::logger> log;
  std::unique_ptr<EventLoop> loop;
};

Result<Surroundings> make_surroundings(const DaemonOptions& options) {
  Result<RunDir> run_dir = open_run_dir(options);
  if (!run_dir) return fail(std::move(run_dir.error()));
  if (Status fits = run_dir->check_socket_length(options.device()); !fits) return fail(fits.error());
  std::string log_file = run_dir->file(log_name(options));
  Result<std::shared_ptr<spdlog::logger>> log =
      make_logger({"wcached", options.log_level, STDERR_FILENO, log_file});
  if (!log) return fail(std::move(log.error()));
  Result<std::unique_ptr<EventLoop>> loop = EventLoop::create();
  if (!loop) return fail(std::move(loop.error()));
  return Surroundings{std::move(*run_dir), std::move(log_file), std::move(*log), std::move(*loop)};
}

/// Whatever the variable said: the driver, which reads it when it is loaded, shows the daemon its own device
/// and can make no context elsewhere. Before there are threads.
void show_one_device(const DaemonOptions& options) {
  if (!options.device_uuid.empty()) setenv("CUDA_VISIBLE_DEVICES", options.device_uuid.c_str(), 1);
}

Result<Stop> serve(const DaemonOptions& options, const Fd& signals) {
  std::optional<Connection> launcher;
  if (options.launcher_fd >= 0) {
    Result<Connection> connection = Connection::adopt(Fd::adopt(options.launcher_fd));
    if (!connection) return fail(std::move(connection.error()));
    launcher = std::move(*connection);
  }
  const Result<Surroundings> around = make_surroundings(options);
  if (!around) {
    tell(launcher, options, around.error());
    return fail(around.error());
  }
  spdlog::logger& log = *around->log;
  Stop stop;
  {
    Daemon daemon(options, around->run_dir, signals.get(), std::move(launcher), *around->loop, log,
                  [&](const LoadRequest& request, const LoadEvents& events, std::stop_token token) {
                    return load(options, log, request, events, std::move(token));
                  });
    stop = daemon.run();
  }
  // What is worth keeping is the log of a failure; its lines went to standard error as well. Another one
  // serving the entry is none.
  const bool failed = stop.reason == StopReason::failed && stop.error->reason != Reason::busy;
  if (!failed) unlink(around->log_file.c_str());
  return stop;
}

int run(int argc, char** argv) {
  const Result<Fd> signals = catch_signals();
  allow_many_files();
  const Result<std::variant<DaemonOptions, HelpText, ListDevices>> options = parse_daemon_options(argc, argv);
  Result<Stop> stop = Stop{};
  if (!signals) {
    stop = fail(signals.error());
  } else if (!options) {
    stop = fail(options.error());
  } else if (const auto* help = std::get_if<HelpText>(&*options)) {
    std::fputs(help->text.c_str(), stdout);
    return 0;
  } else if (std::holds_alternative<ListDevices>(*options)) {
    std::fputs(to_json(report_cuda_devices(cuda_driver_file())).c_str(), stdout);
    return 0;
  } else {
    show_one_device(std::get<DaemonOptions>(*options));
    stop = serve(std::get<DaemonOptions>(*options), *signals);
  }
  if (stop) return stop->exit_code();
  std::fprintf(stderr, "wcached: %s\n", stop.error().message.c_str());
  if (!stop.error().hint.empty()) std::fprintf(stderr, "wcached: %s\n", stop.error().hint.c_str());
  return exit_code(stop.error().reason);
}

}  // namespace
}  // namespace wcache

int main(int argc, char** argv) {
  try {
    return wcache::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "wcached: %s\n", error.what());
    return exit_code(wcache::Reason::internal);
  }
}

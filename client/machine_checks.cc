#include "client/machine_checks.h"

#include <linux/io_uring.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <vector>

#include "core/entry_plan.h"
#include "core/fd.h"
#include "core/format.h"
#include "daemon/budget.h"
#include "daemon/memory/arena.h"
#include "ipc/run_dir.h"

namespace wcache {
namespace {

using Grade = MachineCheck::Grade;

constexpr std::uint64_t kLittleMemory = std::uint64_t{1} << 30;  // less holds no model worth caching

std::string read_text(const std::string& path) {
  std::ifstream stream(path);
  return {std::istreambuf_iterator<char>(stream), {}};
}

std::uint64_t number_at(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return 0;
  std::uint64_t number = 0;
  std::from_chars(text.data() + begin, text.data() + text.size(), number);
  return number;
}

EntryPlan trial_plan(std::uint64_t nbytes) {
  EntryPlan plan;
  plan.name = "doctor";
  ImagePlan image;
  image.name = "doctor.safetensors";
  image.kind = FileKind::safetensors;
  image.nbytes = nbytes;
  image.segments = {{0, nbytes}};
  plan.images.push_back(std::move(image));
  return plan;
}

Result<SealedArena> fill_trial_arena(const MemoryKernel& kernel) {
  constexpr std::uint64_t kBytes = std::uint64_t{8} << 20;
  Result<Arena> arena = Arena::create(trial_plan(kBytes), kernel);
  if (!arena) return fail(arena.error());
  for (const std::span<std::byte> image : arena->images()) std::memset(image.data(), 0, image.size());
  const std::array manifest = {std::byte{0}};
  if (Status added = arena->add_manifest(manifest); !added) return fail(added.error());
  return std::move(*arena).seal();
}

MachineCheck check_gpu(const ReportedDevice& device) {
  MachineCheck check{"gpu", Grade::ok,
                     device.uuid + ", " + device.name + ", " + human_size(device.nbytes) + ": ", ""};
  if (device.compute_mode == ComputeMode::prohibited) {
    check.grade = Grade::lacking;
    check.found += "in prohibited mode, takes no process";
    check.advice = "nvidia-smi -i " + device.uuid + " -c DEFAULT";
  } else if (device.compute_mode == ComputeMode::exclusive) {
    check.grade = Grade::lacking;
    check.found += "in exclusive-process mode, not shared by a daemon and an engine";
    check.advice = "nvidia-smi -i " + device.uuid + " -c DEFAULT";
  } else if (!device.vmm) {
    check.grade = Grade::lacking;
    check.found += "weights are shared by handles (--ipc legacy), there are no descriptors of its memory";
    check.advice = "an engine loses the weights when their daemon ends; a newer driver may know descriptors";
  } else {
    check.found += "weights are shared as descriptors (--ipc vmm), or by handles (--ipc legacy)";
  }
  return check;
}

}  // namespace

std::string_view to_string(MachineCheck::Grade grade) {
  switch (grade) {
    case Grade::ok:
      return "ok";
    case Grade::lacking:
      return "lacking";
    case Grade::fatal:
      break;
  }
  return "fatal";
}

MachineCheck check_kernel() {
  utsname name{};
  uname(&name);
  int major = 0, minor = 0;
  std::sscanf(name.release, "%d.%d", &major, &minor);
  MachineCheck check{"kernel", Grade::ok, std::string("Linux ") + name.release, ""};
  if (std::pair(major, minor) < std::pair(6, 9)) {
    check.grade = Grade::lacking;
    check.advice = "Linux 6.9 or newer serves mappings straight from memory (FUSE passthrough)";
  }
  return check;
}

MachineCheck check_mount(const FuseProbe& probe) {
  if (!probe.device) {
    const bool shut = probe.device.error().reason == Reason::denied;
    return {"fuse", Grade::fatal, probe.device.error().message,
            shut ? "let this user open it: chmod 0666 /dev/fuse"
                 : "load the module (modprobe fuse); in a container, give it the device /dev/fuse"};
  }
  if (probe.mount) return {"fuse", Grade::ok, "a mount can be made with this process's own rights", ""};
  if (!probe.helper.empty())
    return {"fuse", Grade::ok,
            "mounts are made by " + probe.helper + " (" + probe.mount.error().message + ")", ""};
  return {"fuse", Grade::fatal, probe.mount.error().message + ", and there is no setuid fusermount3",
          "install the package fuse3, or run as root; a container needs CAP_SYS_ADMIN"};
}

MachineCheck check_passthrough(const FuseProbe& probe) {
  if (probe.passthrough) return {"passthrough", Grade::ok, "memory was registered as a backing file", ""};
  return {"passthrough", Grade::lacking, probe.passthrough.error().message,
          "reads are served by copying, and mappings do not outlive wcachefs; it needs Linux 6.9 and "
          "CAP_SYS_ADMIN in "
          "the initial user namespace"};
}

MachineCheck check_memory_kind() {
  const MemoryKernel kernel = MemoryKernel::real();
  const Result<SealedArena> arena = fill_trial_arena(kernel);
  if (!arena)
    return {"memory", Grade::fatal, "no memory for weights could be made: " + arena.error().message,
            arena.error().hint};
  MachineCheck check{
      "memory", Grade::ok,
      "a " + std::string(to_string(arena->kind)) + " of " + std::string(to_string(arena->pages)) + " pages",
      ""};
  if (arena->pages == PageKind::huge) return check;
  check.grade = Grade::lacking;
  if (!arena->note.empty()) check.found += " (" + arena->note + ")";
  const std::string setting = read_text("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
  if (setting.find("[deny]") != std::string::npos) {
    check.advice =
        "huge pages are denied to every tmpfs: echo never > "
        "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
  } else if (arena->kind == MemoryKind::memfd) {
    check.advice =
        "run with CAP_SYS_ADMIN for a private tmpfs of huge pages, or echo advise > "
        "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
  } else {
    check.advice = "memory may be fragmented: echo 1 > /proc/sys/vm/compact_memory";
  }
  return check;
}

MachineCheck check_io_uring() {
  io_uring_params params{};
  const Fd ring = Fd::adopt(static_cast<int>(syscall(SYS_io_uring_setup, 8, &params)));
  if (ring) return {"io_uring", Grade::ok, "a ring was made", ""};
  const std::string why = errno_error("making a ring", errno).message;
  const std::uint64_t disabled = number_at(read_text("/proc/sys/kernel/io_uring_disabled"));
  return {"io_uring", Grade::lacking, why,
          disabled != 0 ? "checkpoints are read by threads; sysctl kernel.io_uring_disabled=0 allows it"
                        : "checkpoints are read by threads; a container's seccomp profile may forbid it"};
}

std::vector<MachineCheck> check_gpus(const DeviceReport& report) {
  if (report.trouble == DeviceTrouble::no_driver)
    return {{"gpu", Grade::ok, report.error.message + "; weights are held in host memory", ""}};
  if (report.trouble)
    return {{"gpu", Grade::lacking, report.error.message + "; weights are held in host memory",
             report.error.hint}};
  const std::size_t count = report.devices.size();
  std::vector<MachineCheck> checks = {{"gpu", Grade::ok,
                                       "a driver of CUDA " + report.driver + " with " +
                                           std::to_string(count) + (count == 1 ? " device" : " devices"),
                                       ""}};
  for (const ReportedDevice& device : report.devices) checks.push_back(check_gpu(device));
  return checks;
}

MachineCheck check_free_memory(const std::vector<MemoryLimit>& limits) {
  MachineCheck check{"memory-limits", Grade::ok, "", ""};
  const MemoryLimit* tightest = nullptr;
  for (const MemoryLimit& limit : limits) {
    check.found += (check.found.empty() ? "" : ", ") + human_size(limit.available) + " of " +
                   human_size(limit.total) + " left of " + limit.name;
    if (tightest == nullptr || limit.available < tightest->available) tightest = &limit;
  }
  if (tightest == nullptr) check.found = "no limit could be read";
  if (tightest != nullptr && tightest->available < kLittleMemory) {
    check.grade = Grade::lacking;
    check.advice = tightest->hint;
  }
  return check;
}

MachineCheck check_resource_limits() {
  struct Limit {
    __rlimit_resource which;
    const char* name;
    rlim_t enough;
    const char* option;
  };
  constexpr rlim_t kUnlimited = RLIM_INFINITY;
  constexpr std::array<Limit, 3> kLimits = {{{RLIMIT_NOFILE, "open files", 1024, "-n"},
                                             {RLIMIT_FSIZE, "file size", kUnlimited, "-f"},
                                             {RLIMIT_AS, "address space", kUnlimited, "-v"}}};
  MachineCheck check{"limits", Grade::ok, "", ""};
  for (const Limit& limit : kLimits) {
    rlimit value{};
    if (getrlimit(limit.which, &value) != 0) continue;
    const std::string number = value.rlim_cur == kUnlimited ? "unlimited" : std::to_string(value.rlim_cur);
    check.found += std::string(check.found.empty() ? "" : ", ") + limit.name + " " + number;
    if (value.rlim_cur == kUnlimited || value.rlim_cur >= limit.enough) continue;
    check.grade = Grade::lacking;
    const std::string enough = limit.enough == kUnlimited ? "unlimited" : std::to_string(limit.enough);
    check.advice += std::string(check.advice.empty() ? "" : "; ") + "ulimit " + limit.option + " " + enough;
  }
  return check;
}

MachineCheck check_run_dir(const Result<std::string>& run_dir, const std::string& uuid) {
  if (!run_dir) return {"run-dir", Grade::fatal, run_dir.error().message, run_dir.error().hint};
  const Result<RunDir> directory = RunDir::open(*run_dir);
  if (!directory && directory.error().reason == Reason::not_found)
    return {"run-dir", Grade::ok, *run_dir + " is not there yet; preload makes it", ""};
  if (!directory) return {"run-dir", Grade::fatal, directory.error().message, directory.error().hint};
  if (const Status fits = directory->check_socket_length(uuid); !fits)
    return {"run-dir", Grade::fatal, fits.error().message, fits.error().hint};
  return {"run-dir", Grade::ok, *run_dir, ""};
}

}  // namespace wcache

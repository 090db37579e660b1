#include "daemon/supervisor/device_probe.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

#include "core/fd.h"
#include "daemon/supervisor/process.h"

namespace wcache {
namespace {

constexpr const char* kVisible = "CUDA_VISIBLE_DEVICES=";
constexpr std::size_t kMostOutput = std::size_t{1} << 20;
constexpr int kLookMs = 100;
constexpr std::chrono::seconds kDies{2};  // a process that hangs in the kernel does not

std::vector<std::string> environment_of(const DeviceView& view) {
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) variables.emplace_back(*variable);
  if (view.as_set) return variables;
  std::erase_if(variables, [](const std::string& variable) { return variable.starts_with(kVisible); });
  if (!view.only.empty()) variables.push_back(kVisible + view.only);
  return variables;
}

DeviceReport no_answer(std::string message, std::string hint = {}) {
  return trouble_report(DeviceTrouble::no_answer,
                        Error{Reason::unsupported, std::move(message), std::move(hint)});
}

/// Appends what is there. False at the end, and where it is no report any more.
bool read_some(int fd, std::string& text) {
  std::array<char, 4096> piece{};
  const ssize_t count = read(fd, piece.data(), piece.size());
  if (count < 0) return errno == EAGAIN || errno == EINTR;
  text.append(piece.data(), static_cast<std::size_t>(count));
  return count > 0 && text.size() < kMostOutput;
}

/// Everything that the process says until it ends; false where it was not waited for so long.
bool listen(const Process& process, int fd, const DeviceProbe& probe, std::string& text) {
  const Deadline deadline = deadline_in(probe.deadline);
  bool open = true;
  while (!process.ended()) {
    if (remaining_ms(deadline) == 0 || (probe.stop && probe.stop())) return false;
    std::array<pollfd, 2> items = {{{process.fd(), POLLIN, 0}, {open ? fd : -1, POLLIN, 0}}};
    poll(items.data(), items.size(), std::min(remaining_ms(deadline), kLookMs));
    if (items[1].revents != 0) open = read_some(fd, text);
  }
  // What it said last; a process that it left behind may keep the pipe open.
  for (pollfd item{fd, POLLIN, 0}; open && poll(&item, 1, 0) > 0;) open = read_some(fd, text);
  return true;
}

DeviceProbe probe_beside(const std::string& directory) {
  DeviceProbe probe;
  const char* path = std::getenv("PATH");
  probe.wcached = find_program("wcached", directory, path == nullptr ? "" : path).value_or("");
  return probe;
}

}  // namespace

DeviceReport DeviceProbe::run(const DeviceView& view) const {
  if (wcached.empty())
    return no_answer("the program wcached was not found", "install wcache as a whole, or set the PATH");
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return no_answer(errno_error("pipe", errno).message);
  const Fd reader = Fd::adopt(ends[0]);
  Fd writer = Fd::adopt(ends[1]);
  fcntl(reader.get(), F_SETFL, O_NONBLOCK);
  Result<Process> process =
      Process::start(wcached, {"--devices"}, {.output = writer.get(), .environment = environment_of(view)});
  if (!process) return no_answer(process.error().message, process.error().hint);
  writer = Fd();
  std::string text;
  if (!listen(*process, reader.get(), *this, text)) {
    process->signal(SIGKILL);
    process->wait(deadline_in(kDies));
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(deadline).count();
    return no_answer(stop && stop()
                         ? "stopped"
                         : "the CUDA driver gave no answer within " + std::to_string(seconds) + " s",
                     "see whether nvidia-smi answers, and dmesg; --device host does without the driver");
  }
  if (const ExitStatus end = *process->ended(); !end.clean())
    return no_answer("asking the CUDA driver for its devices ended with " + end.describe(),
                     "see whether nvidia-smi answers; --device host does without the driver");
  Result<DeviceReport> report = device_report_of(text);
  return report ? std::move(*report) : no_answer(report.error().message);
}

DeviceProbe machine_probe() {
  return probe_beside(program_directory().value_or(""));
}

DeviceProbe library_probe() {
  Dl_info library{};
  if (dladdr(reinterpret_cast<void*>(&library_probe), &library) == 0 || library.dli_fname == nullptr)
    return probe_beside("");
  std::error_code error;
  const std::filesystem::path file = std::filesystem::canonical(library.dli_fname, error);
  return probe_beside((file.parent_path().parent_path() / "bin").string());
}

}  // namespace wcache

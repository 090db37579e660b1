// Plays wcachefs for the launcher's tests: wcachefs DIR -f -o run_dir=RUN. It shows the entry
// target/FAKE_FINGERPRINT, as a plain directory, and answers at its socket until SIGTERM.
// FAKE_WCACHEFS=refuse: it ends with exit code 2.
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "ipc/run_dir.h"
#include "tests/unit/client/status_server.h"

int main(int argc, char** argv) {
  using namespace wcache;
  const auto variable = [](const char* name) -> std::string {
    const char* value = std::getenv(name);
    return value == nullptr ? "" : value;
  };
  if (argc < 5 || variable("FAKE_WCACHEFS") == "refuse") return 2;
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigprocmask(SIG_BLOCK, &set, nullptr);
  const std::filesystem::path directory = argv[1];
  const std::string options = argv[4];
  const RunDir run_dir = RunDir::open(options.substr(options.find('=') + 1)).value();
  const std::string entry = "target/" + variable("FAKE_FINGERPRINT");
  std::filesystem::create_directories(directory / entry);
  StatusReply reply;
  reply.pid = getpid();
  reply.mount = {directory.string(), getpid(), true, "", {entry}};
  {
    const StatusServer server(run_dir.mount_socket(), reply);
    int number = 0;
    sigwait(&set, &number);
  }
  std::filesystem::remove_all(directory / "target");
  return 0;
}

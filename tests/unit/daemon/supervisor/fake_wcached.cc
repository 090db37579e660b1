// Plays wcached for the launcher's tests. What it does is the word in the environment variable FAKE_WCACHED:
//   ready            says it fills, then that it is ready, and serves its socket until SIGTERM
//   ready-then-die   the same, and dies a moment later
//   evicted          the same, and says a moment later that it was evicted
//   corrupt          says that it failed
//   busy             says that another serves FAKE_FINGERPRINT
//   die              ends without a word
//   hang-before      says nothing, and ends on SIGTERM
//   hang             fills for ever, and ignores SIGTERM
//   garbage          sends what is no message
//   slow-to-end      serves as with ready, and takes half a second to end on SIGTERM
//   in-turn          writes "<role> starts" to the file FAKE_LOG, a moment later "<role> fills", and serves
//   together         the same, but fills once FAKE_LOG tells of two that start
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "core/fd.h"
#include "ipc/client.h"
#include "ipc/run_dir.h"
#include "tests/unit/client/status_server.h"

namespace wcache {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// Appends a line at once, whoever else does.
void log(const std::string& line) {
  const Fd file = open_file(variable("FAKE_LOG").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600).value();
  const std::string text = line + "\n";
  if (write(file.get(), text.data(), text.size()) < 0) std::abort();
}

long lines_of_log() {
  std::ifstream file(variable("FAKE_LOG"));
  return std::count(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>(), '\n');
}

[[noreturn]] void wait_for_term(const sigset_t& set) {
  int number = 0;
  sigwait(&set, &number);
  throw number;
}

int play(std::map<std::string, std::string> options, const sigset_t& set) {
  const std::string word = variable("FAKE_WCACHED");
  Connection launcher = Connection::adopt(Fd(std::stoi(options["--launcher-fd"]))).value();
  const auto tell = [&](const RankStatus& status) {
    static_cast<void>(send_message(launcher, {0, status}, deadline_in(std::chrono::seconds(5))));
  };
  if (word == "in-turn" || word == "together") {
    log(options["--role"] + " starts");
    if (word == "in-turn") std::this_thread::sleep_for(std::chrono::milliseconds(300));
    while (word == "together" && lines_of_log() < 2)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    log(options["--role"] + " fills");
  }
  RankStatus status;
  status.role = options["--role"];
  status.name = options["--name"];
  status.source = options["--model"];
  status.tier = "host";
  status.tp_size = 1;
  status.nbytes = 1000;
  if (word == "die") return 3;
  if (word == "hang-before") wait_for_term(set);
  status.state = State::filling;
  status.filled = 400;
  tell(status);
  if (word == "hang") {
    signal(SIGTERM, SIG_IGN);
    for (;;) pause();
  }
  if (word == "garbage") {
    const std::byte bytes[3] = {};
    static_cast<void>(launcher.send(bytes, {}, deadline_in(std::chrono::seconds(5))));
    wait_for_term(set);
  }
  status.fingerprint = variable("FAKE_FINGERPRINT");
  if (word == "corrupt" || word == "busy") {
    status.state = State::failed;
    status.reason = word;
    status.message = word == "busy" ? "already served by pid 1" : "model.safetensors: hole";
    tell(status);
    return 1;
  }
  const RunDir run_dir = RunDir::open(options["--run-dir"]).value();
  const std::string device = options["--device"] == "host" ? "HOST-0" : options["--device"].substr(5);
  status.socket = run_dir.rank_socket(role_from_string(status.role).value(),
                                      Fingerprint{digest_from_hex(status.fingerprint).value()}, device);
  status.state = State::ready;
  status.pid = getpid();
  status.filled = 1000;
  StatusReply reply;
  reply.pid = getpid();
  reply.ranks = {status};
  const StatusServer server(status.socket, reply);
  tell(status);
  if (word == "slow-to-end") {
    int number = 0;
    sigwait(&set, &number);
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    return 0;
  }
  if (word == "ready" || word == "in-turn" || word == "together") wait_for_term(set);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  if (word == "ready-then-die") raise(SIGKILL);
  status.state = State::failed;
  status.reason = "evicted";
  tell(status);
  return 0;
}

}  // namespace
}  // namespace wcache

int main(int argc, char** argv) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigprocmask(SIG_BLOCK, &set, nullptr);
  std::map<std::string, std::string> options;
  for (int i = 1; i + 1 < argc; i += 2) options[argv[i]] = argv[i + 1];
  try {
    return wcache::play(options, set);
  } catch (int) {
    return 0;
  }
}

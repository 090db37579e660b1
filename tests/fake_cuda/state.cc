#include "tests/fake_cuda/state.h"

#include <unistd.h>

#include <cstdlib>

namespace wcache::fake_cuda {

namespace {

std::string counters_path(const SharedDirectory& directory) {
  if (directory.path().empty() || !directory.prepare()) return {};
  return (directory.path() / "process" / std::to_string(getpid())).string();
}

std::uint64_t states_made = 0;

}  // namespace

State::State(const char* directory_path)
    : pid(getpid()),
      generation(states_made++),
      directory(directory_path ? directory_path : ""),
      counters(counters_path(directory)) {
  if (directory.path().empty()) problem = "WCACHE_FAKE_CUDA_DIR is not set";
  if (std::optional<Config> read = read_config(directory.path() / "config", problem))
    config = std::move(*read);
  const char* text = std::getenv("WCACHE_FAKE_CUDA_FAIL");
  if (std::optional<Failures> parsed = Failures::parse(text ? text : "")) {
    failures = std::move(*parsed);
  } else {
    problem = std::string("WCACHE_FAKE_CUDA_FAIL is not understood: ") + text;
  }
}

Driver& driver() {
  static Driver& driver = *new Driver;
  return driver;
}

}  // namespace wcache::fake_cuda

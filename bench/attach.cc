// wcache-attach-bench ROUNDS RUN-DIR ENTRY...: how long it takes to open each entry by libwcache and to be
// told where the bytes of one of its tensors are. The entries are measured in turns, in another order each
// round; prints one line of JSON: the seconds of each.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "client/wcache.h"

namespace {

using Clock = std::chrono::steady_clock;

/// Seconds until a tensor in the middle of the table can be used; ends the program where it cannot.
double attach(const char* run_dir, const char* name) {
  wcache_entry* entry = nullptr;
  wcache_tensor tensor;
  const auto began = Clock::now();
  const bool works = wcache_open(name, run_dir, nullptr, &entry) == WCACHE_OK &&
                     wcache_tensor_at(entry, wcache_tensor_count(entry) / 2, &tensor) == WCACHE_OK;
  const double seconds = std::chrono::duration<double>(Clock::now() - began).count();
  if (!works || tensor.data == nullptr) {
    std::fprintf(stderr, "%s: %s\n", name, wcache_last_message());
    std::exit(1);
  }
  wcache_close(entry);
  return seconds;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  const int rounds = std::atoi(argv[1]);
  const std::vector<const char*> entries(argv + 3, argv + argc);
  std::vector<std::vector<double>> seconds(entries.size());
  for (int round = -1; round < rounds; ++round) {  // the first warms up
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const std::size_t turn = (i + static_cast<std::size_t>(round + 1)) % entries.size();
      const double taken = attach(argv[2], entries[turn]);
      if (round >= 0) seconds[turn].push_back(taken);
    }
  }
  std::string out;
  for (const std::vector<double>& series : seconds) {
    std::string list;
    for (const double value : series) list += (list.empty() ? "" : ", ") + std::to_string(value * 1e6);
    out += (out.empty() ? "[" : ", [") + list + "]";
  }
  std::printf("{\"microseconds\": [%s]}\n", out.c_str());
  return 0;
}

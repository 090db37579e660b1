// wcache-fill-probe FILE...: fills an arena with the files and hashes them, as a daemon does, and prints one
// line of JSON. For benchmarks; not installed. WCACHE_FILL_PATH, WCACHE_FILL_WORKERS and WCACHE_FILL_DEPTH
// choose the way.
#include <sys/stat.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "daemon/fill/disk.h"
#include "daemon/fill/fill.h"
#include "daemon/memory/arena.h"

namespace wcache {
namespace {

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

Result<EntryPlan> plan_of(int count, char** paths) {
  EntryPlan plan;
  for (int i = 0; i < count; ++i) {
    struct stat st {};
    if (stat(paths[i], &st) != 0) return fail_errno(paths[i], errno);
    SourceFile source;
    source.name = std::filesystem::path(paths[i]).filename();
    source.path = paths[i];
    source.identity = FileIdentity::of(st);
    ImagePlan image;
    image.name = source.name;
    image.kind = FileKind::opaque;
    image.nbytes = source.identity.nbytes;
    if (image.nbytes > 0) {
      image.pieces.push_back({0, static_cast<std::uint32_t>(i), 0, image.nbytes});
      image.segments.push_back({0, image.nbytes});
    }
    plan.sources.push_back(std::move(source));
    plan.images.push_back(std::move(image));
  }
  return plan;
}

Status run(int count, char** paths) {
  using Clock = std::chrono::steady_clock;
  auto plan = plan_of(count, paths);
  if (!plan) return fail(plan.error());
  const auto way = DiskOptions::from_word(environment("WCACHE_FILL_PATH"));
  if (!way) return fail(way.error());
  const MachineDisk machine = open_machine_disk(*way);
  FillOptions options;
  options.note = machine.note;
  if (const std::string n = environment("WCACHE_FILL_WORKERS"); !n.empty())
    options.workers = static_cast<unsigned>(std::stoul(n));
  if (const std::string n = environment("WCACHE_FILL_DEPTH"); !n.empty())
    options.depth = static_cast<unsigned>(std::stoul(n));

  const MemoryKernel kernel = MemoryKernel::real();
  const auto began = Clock::now();
  auto arena = Arena::create(*plan, kernel, {.memfd = environment("WCACHE_MEMORY") == "memfd"});
  if (!arena) return fail(arena.error());
  const std::chrono::duration<double> allocated = Clock::now() - began;
  const auto report = fill(*plan, arena->images(), *machine.disk, options);
  if (!report) return fail(report.error());
  const auto filled = Clock::now();
  auto sealed = std::move(*arena).seal();
  if (!sealed) return fail(sealed.error());
  const std::chrono::duration<double> sealing = Clock::now() - filled;
  const double seconds = allocated.count() + report->seconds + sealing.count();
  std::printf(
      "{\"nbytes\": %llu, \"read_nbytes\": %llu, \"seconds\": %.4f, \"allocate_seconds\": %.4f, "
      "\"fill_seconds\": %.4f, "
      "\"seal_seconds\": %.4f, \"gb_per_s\": %.3f, \"fill_path\": \"%s\", \"memory\": \"%s\", \"pages\": "
      "\"%s\", "
      "\"digest\": \"%s\"}\n",
      static_cast<unsigned long long>(report->nbytes), static_cast<unsigned long long>(report->read_nbytes),
      seconds, allocated.count(), report->seconds, sealing.count(),
      static_cast<double>(report->nbytes) / seconds / 1e9, std::string(to_string(report->path)).c_str(),
      std::string(to_string(sealed->kind)).c_str(), std::string(to_string(sealed->pages)).c_str(),
      to_hex(report->digests.front().file).c_str());
  return {};
}

}  // namespace
}  // namespace wcache

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: wcache-fill-probe FILE...\n");
    return 2;
  }
  const auto done = wcache::run(argc - 1, argv + 1);
  if (done) return 0;
  std::fprintf(stderr, "wcache-fill-probe: %s\n", done.error().message.c_str());
  return wcache::exit_code(done.error().reason);
}

#include "tests/fake_cuda/counters.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <cstdio>
#include <cstring>
#include <iterator>
#include <new>

#include "tests/fake_cuda/own_fd.h"

namespace wcache::fake_cuda {

namespace {

constexpr std::string_view kCounterNames[] = {
#define X(name, text) text,
    WCACHE_FAKE_CUDA_COUNTERS(X)
#undef X
};
constexpr std::size_t kDevices = 64;
constexpr std::size_t kFirstCall = 1;
constexpr std::size_t kFirstCounter = kFirstCall + kFunctions;
constexpr std::size_t kFirstContext = kFirstCounter + std::size(kCounterNames);
constexpr std::size_t kRecords = kFirstContext + kDevices;
constexpr std::size_t kBytes = kRecords * sizeof(CounterRecord);

void name_records(CounterRecord* records) {
  const auto put = [records](std::size_t i, const std::string& name) {
    std::strncpy(records[i].name, name.c_str(), sizeof records[i].name - 1);
  };
  put(0, "calls.any");
  for (std::size_t i = 0; i < kFunctions; ++i) put(kFirstCall + i, "calls." + std::string(kFunctionNames[i]));
  for (std::size_t i = 0; i < std::size(kCounterNames); ++i)
    put(kFirstCounter + i, std::string(kCounterNames[i]));
  for (std::size_t i = 0; i < kDevices; ++i) put(kFirstContext + i, "contexts_made." + std::to_string(i));
}

/// Complete before anybody sees it, and another file than an earlier process of that id had.
void* map_file(const std::string& path) {
  const std::string temporary = path + ".new";
  OwnFd fd(open(temporary.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!fd || ftruncate(fd.get(), static_cast<off_t>(kBytes)) != 0) return MAP_FAILED;
  void* mapped = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (mapped == MAP_FAILED) return MAP_FAILED;
  name_records(static_cast<CounterRecord*>(mapped));
  std::rename(temporary.c_str(), path.c_str());
  return mapped;
}

}  // namespace

Counters::Counters(const std::string& path) {
  void* mapped = path.empty() ? MAP_FAILED : map_file(path);
  if (mapped == MAP_FAILED) {
    mapped = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) throw std::bad_alloc();
    name_records(static_cast<CounterRecord*>(mapped));
  }
  records_ = static_cast<CounterRecord*>(mapped);
}

Counters::~Counters() {
  munmap(records_, kBytes);
}

void Counters::count_call(Function function) {
  records_[0].value.fetch_add(1, std::memory_order_relaxed);
  records_[kFirstCall + static_cast<std::size_t>(function)].value.fetch_add(1, std::memory_order_relaxed);
}

std::uint64_t Counters::calls(Function function) const {
  return records_[kFirstCall + static_cast<std::size_t>(function)].value.load(std::memory_order_relaxed);
}

std::uint64_t Counters::all_calls() const {
  return records_[0].value.load(std::memory_order_relaxed);
}

void Counters::forget_calls() {
  for (std::size_t i = 0; i < kFirstCounter; ++i) records_[i].value.store(0, std::memory_order_relaxed);
}

void Counters::add(Counter counter, std::int64_t difference) {
  records_[kFirstCounter + static_cast<std::size_t>(counter)].value.fetch_add(
      static_cast<std::uint64_t>(difference), std::memory_order_relaxed);
}

void Counters::set(Counter counter, std::uint64_t value) {
  records_[kFirstCounter + static_cast<std::size_t>(counter)].value.store(value, std::memory_order_relaxed);
}

void Counters::context_made(int device) {
  records_[kFirstContext + static_cast<std::size_t>(device)].value.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace wcache::fake_cuda

#include "tests/fake_cuda/shared_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cstdio>
#include <functional>

namespace wcache::fake_cuda {

namespace {

struct flock whole_file() {
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return lock;
}

OwnFd create_held(const std::filesystem::path& path) {
  OwnFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  struct flock lock = whole_file();
  if (fd && fcntl(fd.get(), F_OFD_SETLK, &lock) == 0) return fd;
  if (fd) unlink(path.c_str());
  return {};
}

/// Calls `visit` with name and size of each live file; removes the dead ones.
void for_each_live(const std::filesystem::path& directory,
                   const std::function<void(const std::string& name, std::uint64_t size)>& visit) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(directory, ignored)) {
    OwnFd fd(open(entry.path().c_str(), O_RDONLY | O_CLOEXEC));
    struct stat status = {};
    if (!fd || fstat(fd.get(), &status) != 0) continue;
    if (is_held(fd.get())) {
      visit(entry.path().filename(), static_cast<std::uint64_t>(status.st_size));
    } else {
      unlink(entry.path().c_str());
    }
  }
}

std::string context_name(int device, pid_t pid) {
  return "d" + std::to_string(device) + "-" + std::to_string(pid);
}

}  // namespace

bool is_held(int fd) {
  struct flock lock = whole_file();
  return fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

bool SharedDirectory::prepare() const {
  std::error_code error;
  for (const char* part : {"memory", "contexts", "process"}) {
    std::filesystem::create_directories(path_ / part, error);
    if (error) return false;
  }
  return true;
}

OwnFd SharedDirectory::lock() const {
  OwnFd fd(open((path_ / "lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  while (fd && flock(fd.get(), LOCK_EX) != 0 && errno == EINTR) {
  }
  return fd;
}

SharedDirectory::Usage SharedDirectory::usage(int device) const {
  Usage usage;
  for_each_live(path_ / "memory", [&](const std::string& name, std::uint64_t size) {
    const std::optional<MemoryName> parsed = parse_memory_name(name);
    if (!parsed || parsed->device != device) return;
    ++usage.allocations;
    usage.bytes += size;
  });
  return usage;
}

std::vector<SharedDirectory::Context> SharedDirectory::contexts() const {
  std::vector<Context> contexts;
  for_each_live(path_ / "contexts", [&](const std::string& name, std::uint64_t) {
    Context context = {};
    if (std::sscanf(name.c_str(), "d%d-%d", &context.device, &context.pid) == 2) contexts.push_back(context);
  });
  return contexts;
}

OwnFd SharedDirectory::create_memory(int device, Kind kind, std::uint64_t bytes, std::string& name) const {
  const std::string prefix = "d" + std::to_string(device) + (kind == Kind::vmm ? "-vmm-" : "-legacy-") +
                             std::to_string(getpid()) + "-";
  for (unsigned n = 0; n < 1'000'000; ++n) {
    name = prefix + std::to_string(n);
    OwnFd fd = create_held(memory_path(name));
    if (!fd && errno == EEXIST) continue;
    if (fd && ftruncate(fd.get(), static_cast<off_t>(bytes)) == 0) return fd;
    if (fd) unlink(memory_path(name).c_str());
    return {};
  }
  return {};
}

OwnFd SharedDirectory::create_context(int device) const {
  const std::filesystem::path path = path_ / "contexts" / context_name(device, getpid());
  unlink(path.c_str());  // of an earlier process of that id
  return create_held(path);
}

void SharedDirectory::remove_context(int device) const {
  unlink((path_ / "contexts" / context_name(device, getpid())).c_str());
}

bool SharedDirectory::holds_copies() const {
  return access((path_ / "hold").c_str(), F_OK) == 0;
}

void SharedDirectory::note_error(std::string_view line) const {
  OwnFd fd(open((path_ / "errors").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  const std::string text = std::string(line) + "\n";
  if (fd && write(fd.get(), text.data(), text.size()) < 0) return;
}

std::optional<SharedDirectory::MemoryName> SharedDirectory::parse_memory_name(std::string_view name) {
  MemoryName parsed = {};
  char kind[8] = {};
  unsigned number = 0;
  if (std::sscanf(std::string(name).c_str(), "d%d-%7[a-z]-%d-%u", &parsed.device, kind, &parsed.pid,
                  &number) != 4) {
    return std::nullopt;
  }
  if (std::string_view(kind) != "vmm" && std::string_view(kind) != "legacy") return std::nullopt;
  parsed.kind = std::string_view(kind) == "vmm" ? Kind::vmm : Kind::legacy;
  return parsed;
}

}  // namespace wcache::fake_cuda

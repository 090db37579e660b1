#include "daemon/memory/arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <utility>

#include "core/sealed.h"
#include "daemon/memory/pages.h"

namespace wcache {
namespace {

constexpr int kSeals = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr unsigned kMfdNoexecSeal = 8;  // MFD_NOEXEC_SEAL of Linux 6.3
constexpr std::uint64_t kHugePage = std::uint64_t{2} << 20;
/// Memory is allocated in steps, so that a stop is noticed.
constexpr std::uint64_t kAllocationStep = std::uint64_t{1} << 30;

/// Errors that mean "not on this kernel, not with these rights", as opposed to "no memory".
bool is_unavailable(int errnum) {
  return errnum == EPERM || errnum == EACCES || errnum == ENOSYS || errnum == EINVAL || errnum == ENODEV ||
         errnum == EOPNOTSUPP;
}

/// MFD_NOEXEC_SEAL where the kernel knows it: a system may refuse memfds that could be executed.
Result<Fd> create_memfd(const MemoryKernel& kernel, const std::string& name) {
  int fd = kernel.memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING | kMfdNoexecSeal);
  if (fd < 0 && errno == EINVAL) fd = kernel.memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return fail_errno("memfd_create for " + name, errno);
  Fd owned = Fd::adopt(fd);
  if (fchmod(owned.get(), 0400) != 0) return fail_errno("fchmod of a memfd", errno);
  return owned;
}

Error no_memory(const std::string& name, std::uint64_t nbytes, int errnum) {
  Error error = errno_error("allocating " + std::to_string(nbytes) + " bytes of memory for " + name, errnum);
  if (errnum == ENOSPC || errnum == ENOMEM) {
    error.reason = Reason::over_budget;
    error.hint = "free memory on this machine, or raise the memory limit of the container";
  }
  return error;
}

/// The kernel gives memfds 2 MiB pages only on a fault in a mapping with MADV_HUGEPAGE, not on fallocate.
bool huge_on_advice(const std::string& shmem_enabled) {
  std::ifstream file(shmem_enabled);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  return text.find("[advise]") != std::string::npos;
}

Result<Fd> reopen_read_only(int fd, const std::string& name) {
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  auto opened = open_file(path.c_str(), O_RDONLY);
  if (!opened) opened.error().message = "reopening " + name + " for reading only: " + opened.error().message;
  return opened;
}

}  // namespace

std::string_view to_string(MemoryKind kind) {
  return kind == MemoryKind::tmpfs ? "tmpfs" : "memfd";
}
std::string_view to_string(PageKind pages) {
  return pages == PageKind::huge ? "huge" : "small";
}

std::uint64_t manifest_bound(const EntryPlan& plan) {
  // A row of manifest.fbs takes at most 80 bytes; strings are counted with their frame.
  constexpr std::uint64_t kFixed = 16384;
  constexpr std::uint64_t kRow = 128;
  std::uint64_t sum = kFixed + plan.name.size() + plan.source.size() + plan.architecture.size() +
                      plan.dtype.size() + plan.quantization.size();
  for (const ImagePlan& image : plan.images) {
    sum += kRow + image.name.size();
    for (const TensorInfo& tensor : image.tensors)
      sum += kRow + tensor.name.size() + tensor.dtype.size() + 8 * tensor.shape.size();
  }
  for (const LeftOut& file : plan.left_out) sum += kRow + file.name.size() + file.why.size();
  return sum;
}

std::uint64_t arena_nbytes(const EntryPlan& plan, bool weights) {
  std::uint64_t sum = whole_pages(manifest_bound(plan));
  for (const ImagePlan& image : plan.images)
    if (weights || !is_weights(image.kind)) sum += whole_pages(image.nbytes);
  return sum;
}

Result<Arena> Arena::create(const EntryPlan& plan, const MemoryKernel& kernel, const ArenaOptions& options,
                            std::stop_token stop) {
  Arena arena(kernel);
  if (options.memfd) {
    arena.note_ = "memfds were asked for";
  } else if (auto made = arena.make_file_systems(plan, options.weights); !made) {
    if (!is_unavailable(made.error().errnum)) return fail(made.error());
    arena.note_ = made.error().message;
    arena.weights_.reset();
    arena.others_.reset();
  }
  arena.images_.resize(plan.images.size());
  for (std::size_t i = 0; i < plan.images.size(); ++i) {
    File& file = arena.images_[i];
    file.name = "image-" + std::to_string(i);
    file.weights = is_weights(plan.images[i].kind);
    if (file.weights && !options.weights) continue;
    if (auto s = arena.add_file(file, plan.images[i].nbytes, options, stop); !s) return fail(s.error());
  }
  return arena;
}

Status Arena::make_file_systems(const EntryPlan& plan, bool with_weights) {
  PrivateTmpfs::Limits weights{.huge_pages = true};
  PrivateTmpfs::Limits others{.nbytes = whole_pages(manifest_bound(plan)), .files = 1};
  for (const ImagePlan& image : plan.images) {
    if (is_weights(image.kind) && !with_weights) continue;
    PrivateTmpfs::Limits& limits = is_weights(image.kind) ? weights : others;
    limits.nbytes += whole_pages(image.nbytes);
    limits.files += 1;
  }
  if (with_weights) {
    // size=0 would mean no limit.
    weights.nbytes = std::max(weights.nbytes, page_nbytes());
    auto made = PrivateTmpfs::create(*kernel_, weights);
    if (!made) return fail(made.error());
    weights_.emplace(std::move(*made));
  }
  auto made = PrivateTmpfs::create(*kernel_, others);
  if (!made) return fail(made.error());
  others_.emplace(std::move(*made));
  return {};
}

Status Arena::add_file(File& file, std::uint64_t nbytes, const ArenaOptions& options,
                       const std::stop_token& stop) {
  file.nbytes = nbytes;
  std::optional<PrivateTmpfs>& home = file.weights ? weights_ : others_;
  auto fd = home ? home->create_file(file.name) : create_memfd(*kernel_, file.name);
  if (!fd) return fail(fd.error());
  file.fd = std::move(*fd);
  // The size comes first: huge=within_size looks at it.
  if (kernel_->ftruncate(file.fd.get(), static_cast<off_t>(nbytes)) != 0)
    return fail(no_memory(file.name, nbytes, errno));
  auto mapping = Mapping::map(file.fd.get(), nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.name);
  if (!mapping) return fail(mapping.error());
  file.mapping = std::move(*mapping);
  return allocate(file, options, stop);
}

Status Arena::allocate(const File& file, const ArenaOptions& options, const std::stop_token& stop) {
  bool by_fault = false;
  if (kind() == MemoryKind::memfd && file.weights && file.nbytes >= kHugePage) {
    // Advice only: without transparent huge pages the kernel refuses it, and small pages serve as well.
    madvise(file.mapping.data(), file.nbytes, MADV_HUGEPAGE);
    by_fault = huge_on_advice(options.shmem_enabled);
  }
  for (std::uint64_t at = 0; at < file.nbytes;) {
    if (stop.stop_requested()) return fail(Reason::timeout, "stopped while allocating memory");
    const std::uint64_t step = std::min(kAllocationStep, file.nbytes - at);
    int rc = -1;
    if (by_fault) rc = madvise(file.mapping.data() + at, step, MADV_POPULATE_WRITE);
    // MADV_POPULATE_WRITE is of Linux 5.14.
    if (!by_fault || (rc != 0 && errno == EINVAL))
      rc = kernel_->fallocate(file.fd.get(), 0, static_cast<off_t>(at), static_cast<off_t>(step));
    if (rc != 0 && errno == EINTR) continue;
    if (rc != 0) return fail(no_memory(file.name, file.nbytes, errno));
    at += step;
  }
  return {};
}

std::vector<std::span<std::byte>> Arena::images() const {
  std::vector<std::span<std::byte>> spans;
  spans.reserve(images_.size());
  for (const File& file : images_) spans.emplace_back(file.mapping.data(), whole_pages(file.nbytes));
  return spans;
}

Status Arena::add_manifest(std::span<const std::byte> bytes) {
  manifest_.name = "manifest";
  if (auto s = add_file(manifest_, bytes.size(), {}, {}); !s) return s;
  if (!bytes.empty()) std::memcpy(manifest_.mapping.data(), bytes.data(), bytes.size());
  return {};
}

PageKind Arena::measure_pages() const {
  std::uint64_t weights = 0;
  std::uint64_t huge = 0;
  for (const File& file : images_) {
    if (!file.weights) continue;
    weights += file.nbytes;
    if (file.nbytes >= kHugePage) huge += huge_mapped_nbytes(file.mapping.data());
  }
  return huge > weights / 2 ? PageKind::huge : PageKind::small;
}

Result<Fd> Arena::close_writable(File& file) {
  auto reader = reopen_read_only(file.fd.get(), file.name);
  if (!reader) return reader;
  file.mapping.reset();
  // Only a memfd has seals, and only a writable descriptor can add them.
  if (kind() == MemoryKind::memfd && kernel_->add_seals(file.fd.get(), kSeals) != 0) {
    Error error = errno_error("sealing the memory of " + file.name, errno);
    if (error.errnum == EBUSY || error.errnum == EPERM) {
      error.reason = Reason::internal;
      error.hint = "a writable mapping of it is still open somewhere; nothing was published";
    }
    return fail(std::move(error));
  }
  file.fd.reset();
  return reader;
}

Result<SealedArena> Arena::seal() && {
  SealedArena sealed;
  sealed.kind = kind();
  sealed.pages = measure_pages();
  sealed.note = note_;
  for (File& file : images_) {
    sealed.images.emplace_back();
    if (!file.fd) continue;
    auto reader = close_writable(file);
    if (!reader) return fail(reader.error());
    sealed.images.back() = std::move(*reader);
  }
  if (manifest_.fd) {
    auto reader = close_writable(manifest_);
    if (!reader) return fail(reader.error());
    sealed.manifest = std::move(*reader);
  }
  for (std::optional<PrivateTmpfs>* home : {&weights_, &others_})
    if (*home)
      if (auto s = std::move(**home).make_read_only(); !s) return fail(s.error());
  // What a receiver will check is checked here first.
  for (std::size_t i = 0; i < images_.size(); ++i)
    if (sealed.images[i])
      if (auto s = check_sealed(sealed.images[i].get(), images_[i].nbytes); !s) return fail(s.error());
  if (sealed.manifest)
    if (auto s = check_sealed(sealed.manifest.get(), manifest_.nbytes); !s) return fail(s.error());
  return sealed;
}

}  // namespace wcache

// The C ABI of libwcache: arguments checked, errors kept for the thread, nothing thrown.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "client/attached_entry.h"
#include "client/entry_ref.h"
#include "client/find_group.h"
#include "client/located_draft.h"
#include "client/process_slabs.h"
#include "client/redeem.h"
#include "client/wcache.h"
#include "core/digest_cache.h"
#include "core/fingerprint.h"
#include "core/format.h"
#include "core/mount_table.h"
#include "core/version.h"
#include "daemon/supervisor/device_probe.h"
#include "ipc/run_dir.h"

struct wcache_entry {
  std::unique_ptr<wcache::AttachedEntry> attached;
  std::atomic<std::size_t> holds = 1;
};

namespace {

using wcache::AttachedEntry;
using wcache::AttachedTensor;
using wcache::Error;
using wcache::fail;
using wcache::Reason;
using wcache::Result;
using wcache::Status;

constexpr std::chrono::seconds kAttachWait{10};
constexpr std::chrono::milliseconds kBetweenLooks{100};

/// The enum of the ABI is Reason, moved up by one for WCACHE_OK.
constexpr wcache_reason to_abi(Reason reason) {
  return static_cast<wcache_reason>(static_cast<int>(reason) + 1);
}
static_assert(to_abi(Reason::invalid) == WCACHE_INVALID &&
              to_abi(Reason::not_running) == WCACHE_NOT_RUNNING &&
              to_abi(Reason::not_found) == WCACHE_NOT_FOUND &&
              to_abi(Reason::not_ready) == WCACHE_NOT_READY && to_abi(Reason::mismatch) == WCACHE_MISMATCH &&
              to_abi(Reason::stale) == WCACHE_STALE && to_abi(Reason::evicted) == WCACHE_EVICTED &&
              to_abi(Reason::busy) == WCACHE_BUSY && to_abi(Reason::over_budget) == WCACHE_OVER_BUDGET &&
              to_abi(Reason::denied) == WCACHE_DENIED && to_abi(Reason::unsupported) == WCACHE_UNSUPPORTED &&
              to_abi(Reason::corrupt) == WCACHE_CORRUPT && to_abi(Reason::io) == WCACHE_IO &&
              to_abi(Reason::timeout) == WCACHE_TIMEOUT && to_abi(Reason::version) == WCACHE_VERSION &&
              to_abi(Reason::internal) == WCACHE_INTERNAL);

struct LastError {
  wcache_reason reason = WCACHE_OK;
  std::string message;
  std::string hint;
};

LastError& last_error() {
  thread_local LastError error;
  return error;
}

wcache_reason keep(Error error) noexcept {
  LastError& last = last_error();
  last.reason = to_abi(error.reason);
  last.message = std::move(error.message);
  last.hint = std::move(error.hint);
  return last.reason;
}

/// The one exception boundary. Its own texts fit into a std::string without allocating.
template <class Work>
wcache_reason guarded(Work work) noexcept {
  try {
    Status done = work();
    return done ? WCACHE_OK : keep(std::move(done.error()));
  } catch (const std::bad_alloc&) {
    return keep(Error{Reason::internal, "out of memory"});
  } catch (const std::exception& error) {
    try {
      return keep(Error{Reason::internal, std::string("unexpected: ") + error.what()});
    } catch (...) {
      return keep(Error{Reason::internal, "out of memory"});
    }
  } catch (...) {
    return keep(Error{Reason::internal, "unexpected"});
  }
}

Result<std::string> run_dir_or_default(const char* run_dir) {
  if (run_dir != nullptr) return std::string(run_dir);
  return wcache::RunDir::default_path(geteuid(), wcache::RunDir::process_environment);
}

struct Wanted {
  std::string entry;
  std::string run_dir;
  std::string role;
  std::optional<std::uint32_t> rank;
  std::chrono::milliseconds wait{0};
};

Result<Wanted> parse(const char* entry, const char* run_dir, const wcache_options* options) {
  Wanted wanted;
  if (entry == nullptr || *entry == '\0') return fail(Reason::invalid, "no entry is named", {}, "entry");
  wanted.entry = entry;
  Result<std::string> path = run_dir_or_default(run_dir);
  if (!path) return fail(std::move(path.error()));
  wanted.run_dir = std::move(*path);
  if (options == nullptr) return wanted;
  if (options->size != sizeof(wcache_options))
    return fail(Reason::invalid,
                "options of " + std::to_string(options->size) + " bytes are of another version",
                "set size to sizeof(wcache_options)", "size");
  if (options->role != nullptr) {
    if (!wcache::role_from_string(options->role))
      return fail(Reason::invalid, "unknown role '" + wcache::printable(options->role) + "'",
                  "the roles are target and draft0", "role");
    wanted.role = options->role;
  }
  if (options->rank < -1)
    return fail(Reason::invalid, "there is no rank " + std::to_string(options->rank), {}, "rank");
  if (options->rank >= 0) wanted.rank = static_cast<std::uint32_t>(options->rank);
  wanted.wait = std::chrono::milliseconds(options->wait_ms);
  return wanted;
}

/// The mounts of this process; none where they cannot be read.
std::vector<wcache::MountEntry> mounts() {
  Result<std::vector<wcache::MountEntry>> table = wcache::read_mount_table();
  return table ? std::move(*table) : std::vector<wcache::MountEntry>();
}

/// Straight to the daemons of an entry that names itself. Otherwise, and where not all of it is there, what
/// the whole node says decides.
Result<std::unique_ptr<AttachedEntry>> attach_once(const Wanted& wanted) {
  const wcache::Deadline deadline = wcache::deadline_in(kAttachWait);
  if (auto exact = wcache::exact_entry(wanted.entry, wanted.role, mounts)) {
    auto attached = AttachedEntry::attach_exact(std::move(*exact), wanted.run_dir, wanted.rank,
                                                wcache::process_slabs(), deadline);
    if (attached || attached.error().reason == Reason::timeout) return attached;
  }
  const Result<wcache::NodeStatus> node = wcache::collect_status(wanted.run_dir);
  if (!node) return fail(node.error());
  const Result<wcache::GroupStatus> group = wcache::find_group(*node, wanted.entry, wanted.role, std::getenv);
  if (!group) return fail(group.error());
  return AttachedEntry::attach(*group, node->run_dir, wanted.rank, wcache::process_slabs(), deadline);
}

bool may_come(Reason reason) {
  return reason == Reason::not_running || reason == Reason::not_found || reason == Reason::not_ready;
}

Result<std::unique_ptr<AttachedEntry>> attach_waiting(const Wanted& wanted) {
  const wcache::Deadline end = wcache::deadline_in(wanted.wait);
  for (;;) {
    Result<std::unique_ptr<AttachedEntry>> attached = attach_once(wanted);
    if (attached || !may_come(attached.error().reason) || wanted.wait.count() == 0) return attached;
    if (wcache::remaining_ms(end) == 0)
      return fail(Reason::timeout,
                  "waited " + std::to_string(wanted.wait.count()) + " ms: " + attached.error().message,
                  attached.error().hint);
    std::this_thread::sleep_for(
        std::min(kBetweenLooks, std::chrono::milliseconds(wcache::remaining_ms(end))));
  }
}

/// The key of a draft's plan, without progress.
Result<wcache::ResolvedKey> resolve_quietly(const wcache::EntryPlan& plan) {
  const Result<std::filesystem::path> directory = wcache::digest_cache_dir(std::getenv, geteuid());
  wcache::DigestCache cache = directory ? wcache::DigestCache::open(*directory) : wcache::DigestCache();
  return wcache::resolve_key(plan, cache);
}

Status check_arguments(const wcache_entry* entry, const void* out) {
  if (entry == nullptr || out == nullptr) return fail(Reason::invalid, "an argument is NULL");
  return {};
}

Status fill_in(const Result<AttachedTensor>& found, wcache_tensor& out) {
  if (!found) return fail(found.error());
  const AttachedTensor& tensor = *found;
  out = {};
  out.name = tensor.row.name.data();
  out.name_nbytes = tensor.row.name.size();
  out.number = tensor.number;
  out.dtype = tensor.row.dtype.data();  // a string of FlatBuffers: verified to end with NUL
  out.shape = tensor.row.shape.empty() ? nullptr : tensor.row.shape.data();
  out.ndim = tensor.row.shape.size();
  out.nbytes = tensor.row.nbytes;
  out.data = tensor.data;
  out.base = tensor.base;
  out.base_nbytes = tensor.base_nbytes;
  out.device_type = tensor.device == wcache::kHostDevice ? WCACHE_DEVICE_TYPE_CPU : WCACHE_DEVICE_TYPE_CUDA;
  out.device = tensor.device;
  out.read_only = tensor.read_only ? 1 : 0;
  out.rank = tensor.rank;
  out.file = tensor.file;
  out.offset = tensor.row.offset;
  out.slab = tensor.row.slab;
  out.slab_offset = tensor.row.slab_offset;
  const std::string digest = to_hex(tensor.row.digest);
  std::copy(digest.begin(), digest.end(), out.digest);
  return {};
}
static_assert(wcache::kHostDevice == WCACHE_DEVICE_HOST &&
              wcache::kDeviceNotAsked == WCACHE_DEVICE_NOT_ASKED);

}  // namespace

const char* wcache_version(void) {
  return wcache::version().data();  // a literal
}

wcache_reason wcache_open(const char* entry, const char* run_dir, const wcache_options* options,
                          wcache_entry** out) {
  return guarded([&]() -> Status {
    if (out == nullptr) return fail(Reason::invalid, "an argument is NULL");
    const Result<Wanted> wanted = parse(entry, run_dir, options);
    if (!wanted) return fail(wanted.error());
    auto opened = std::make_unique<wcache_entry>();
    Result<std::unique_ptr<AttachedEntry>> attached = attach_waiting(*wanted);
    if (!attached) return fail(std::move(attached.error()));
    opened->attached = std::move(*attached);
    *out = opened.release();
    return {};
  });
}

void wcache_hold(wcache_entry* entry) {
  if (entry != nullptr) entry->holds.fetch_add(1, std::memory_order_relaxed);
}

void wcache_close(wcache_entry* entry) {
  if (entry != nullptr && entry->holds.fetch_sub(1, std::memory_order_acq_rel) == 1) delete entry;
}

wcache_reason wcache_entry_info(const wcache_entry* entry, wcache_info* out) {
  return guarded([&]() -> Status {
    if (Status checked = check_arguments(entry, out); !checked) return checked;
    const AttachedEntry& attached = *entry->attached;
    *out = {};
    out->role = attached.role().c_str();
    out->name = attached.name().c_str();
    out->fingerprint = attached.fingerprint().c_str();
    out->layout = attached.layout().c_str();
    out->source = attached.source().c_str();
    out->nbytes = attached.nbytes();
    out->ranks = static_cast<std::uint32_t>(attached.ranks());
    out->survives = attached.survives() ? 1 : 0;
    out->tier = attached.placement().tier.c_str();
    out->ipc_kind = attached.placement().ipc_kind.c_str();
    out->device_uuid = attached.placement().device_uuid.c_str();
    return {};
  });
}

size_t wcache_tensor_count(const wcache_entry* entry) {
  return entry == nullptr ? 0 : entry->attached->tensor_count();
}

wcache_reason wcache_tensor_at(const wcache_entry* entry, size_t number, wcache_tensor* out) {
  return guarded([&]() -> Status {
    if (Status checked = check_arguments(entry, out); !checked) return checked;
    return fill_in(entry->attached->tensor(number), *out);
  });
}

wcache_reason wcache_tensor_describe(const wcache_entry* entry, size_t number, wcache_tensor* out) {
  return guarded([&]() -> Status {
    if (Status checked = check_arguments(entry, out); !checked) return checked;
    return fill_in(entry->attached->describe(number), *out);
  });
}

wcache_reason wcache_tensor_number(const wcache_entry* entry, const char* name, size_t name_nbytes,
                                   size_t* number) {
  return guarded([&]() -> Status {
    if (Status checked = check_arguments(entry, number); !checked) return checked;
    if (name == nullptr) return fail(Reason::invalid, "an argument is NULL");
    const Result<std::size_t> found = entry->attached->number_of({name, name_nbytes});
    if (!found) return fail(found.error());
    *number = *found;
    return {};
  });
}

wcache_reason wcache_tensor_find(const wcache_entry* entry, const char* name, wcache_tensor* out) {
  return wcache_tensor_find_bytes(entry, name, name == nullptr ? 0 : std::strlen(name), out);
}

wcache_reason wcache_tensor_find_bytes(const wcache_entry* entry, const char* name, size_t name_nbytes,
                                       wcache_tensor* out) {
  size_t number = 0;
  const wcache_reason found = wcache_tensor_number(entry, name, name_nbytes, &number);
  return found == WCACHE_OK ? wcache_tensor_at(entry, number, out) : found;
}

wcache_reason wcache_read(const wcache_entry* entry, size_t number, uint64_t offset, void* out,
                          uint64_t nbytes) {
  return guarded([&]() -> Status {
    if (Status checked = check_arguments(entry, out); !checked) return checked;
    return entry->attached->read(number, offset, {static_cast<std::byte*>(out), nbytes});
  });
}

wcache_reason wcache_redeem(const char* ipc_handle, int* fd, uint64_t* nbytes) {
  return guarded([&]() -> Status {
    if (ipc_handle == nullptr || fd == nullptr) return fail(Reason::invalid, "an argument is NULL");
    Result<wcache::SlabDescriptor> slab = wcache::redeem(ipc_handle, wcache::deadline_in(kAttachWait));
    if (!slab) return fail(std::move(slab.error()));
    if (nbytes != nullptr) *nbytes = slab->nbytes;
    *fd = slab->fd.release();
    return {};
  });
}

wcache_reason wcache_route(const char* model, const char* speculative_config, uint32_t tensor_parallel_size,
                           const char* run_dir, int no_read, char** out) {
  return guarded([&]() -> Status {
    if (model == nullptr || speculative_config == nullptr || out == nullptr)
      return fail(Reason::invalid, "an argument is NULL");
    if (tensor_parallel_size == 0) return fail(Reason::invalid, "a tensor parallel size is 1 or more");
    const Result<std::string> meeting = run_dir_or_default(run_dir);
    if (!meeting) return fail(meeting.error());
    wcache::draftroute::RouteRequest request;
    request.target = model;
    request.speculative = speculative_config;
    request.tp_size = tensor_parallel_size;
    const Result<wcache::LocatedDraft> located =
        wcache::locate_draft(request, *meeting, no_read != 0, resolve_quietly,
                             [](const auto& view) { return wcache::library_probe().run(view); });
    if (!located) return fail(located.error());
    char* text = strdup(to_json(*located).c_str());
    if (text == nullptr) return fail(Reason::internal, "out of memory");
    *out = text;
    return {};
  });
}

void wcache_route_free(char* text) {
  std::free(text);
}

wcache_reason wcache_last_reason(void) {
  return last_error().reason;
}

const char* wcache_last_message(void) {
  return last_error().message.c_str();
}

const char* wcache_last_hint(void) {
  return last_error().hint.c_str();
}

const char* wcache_reason_name(wcache_reason reason) {
  if (reason == WCACHE_OK) return "ok";
  const int number = static_cast<int>(reason) - 1;
  if (number < 0 || number > static_cast<int>(Reason::internal)) return "unknown";
  return to_string(static_cast<Reason>(number)).data();  // a literal
}

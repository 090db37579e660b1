#include "daemon/fill/sources.h"

#include <cerrno>
#include <utility>

#include "daemon/fill/read_plan.h"

namespace wcache {
namespace {

std::string change(const char* what, std::uint64_t before, std::uint64_t now) {
  if (before == now) return {};
  return std::string(" ") + what + " " + std::to_string(before) + " -> " + std::to_string(now) + ",";
}

std::string change(const char* what, std::int64_t before, std::int64_t now) {
  return before == now ? std::string() : std::string(" ") + what + ",";
}

/// "size 10 -> 9, mtime": what tells one identity from the other.
std::string differences(const FileIdentity& before, const FileIdentity& now) {
  std::string text = change("size", before.nbytes, now.nbytes) +
                     change("mtime", before.mtime_ns, now.mtime_ns) +
                     change("ctime", before.ctime_ns, now.ctime_ns) +
                     change("inode", before.inode, now.inode) + change("device", before.device, now.device);
  if (!text.empty()) text.pop_back();
  return text;
}

Status check_identity(const std::string& path, const FileIdentity& expected, const DiskFile& file) {
  const auto now = file.identity();
  if (!now) return fail(now.error());
  if (*now == expected) return {};
  return fail(Reason::stale, path + " changed since it was looked at:" + differences(expected, *now),
              "try again when nothing writes to it any more");
}

bool usable(const DiskFile& file) {
  const std::uint64_t unit = file.alignment();
  return unit > 0 && unit <= kMaxAlignment && (unit & (unit - 1)) == 0;
}

}  // namespace

Result<std::unique_ptr<Sources>> Sources::open(const EntryPlan& plan, Disk& disk) {
  std::unique_ptr<Sources> sources(new Sources(disk, plan.sources.size()));
  std::vector<bool> used(plan.sources.size());
  for (const ImagePlan& image : plan.images)
    for (const Piece& piece : image.pieces)
      if (piece.source < used.size()) used[piece.source] = true;
  for (std::size_t i = 0; i < used.size(); ++i) {
    Entry& entry = sources->entries_[i];
    entry.path = plan.sources[i].path.string();
    entry.identity = plan.sources[i].identity;
    if (!used[i]) continue;
    if (auto s = sources->open_entry(entry); !s) return fail(s.error());
    if (auto s = check_identity(entry.path, entry.identity, *entry.first); !s) return fail(s.error());
  }
  return sources;
}

Status Sources::open_entry(Entry& entry) {
  auto file = disk_.open(entry.path, Access::direct);
  if (file && !usable(**file)) file = fail_errno("direct reads of " + entry.path, EINVAL);
  if (!file && file.error().errnum == EINVAL) {
    note_buffered(entry, file.error().message);
    file = disk_.open(entry.path, Access::buffered);
  }
  if (!file) {
    if (file.error().errnum == EMFILE) file.error().hint = "raise the limit of open files (ulimit -n)";
    return fail(file.error());
  }
  entry.first = std::move(*file);
  entry.alignment = entry.first->alignment();
  entry.current = entry.first.get();
  return {};
}

std::vector<std::uint64_t> Sources::alignments() const {
  std::vector<std::uint64_t> out;
  out.reserve(entries_.size());
  for (const Entry& entry : entries_) out.push_back(entry.alignment);
  return out;
}

void Sources::note_buffered(Entry& entry, const std::string& why) {
  entry.buffered = true;
  if (note_.empty()) note_ = why;
}

Result<bool> Sources::make_buffered(std::uint32_t source, const DiskFile* refused) {
  const std::lock_guard lock(mutex_);
  Entry& entry = entries_[source];
  if (entry.current != refused) return true;
  if (entry.buffered) return false;
  auto file = disk_.open(entry.path, Access::buffered);
  if (!file) return fail(file.error());
  if (auto s = check_identity(entry.path, entry.identity, **file); !s) return fail(s.error());
  entry.second = std::move(*file);
  note_buffered(entry, "direct read of " + entry.path + " refused");
  entry.current = entry.second.get();
  return true;
}

void Sources::drop_cache(std::uint32_t source, std::uint64_t offset, std::uint64_t nbytes) {
  Entry& entry = entries_[source];
  if (entry.buffered) entry.current.load()->drop_cache(offset, nbytes);
}

Status Sources::check_unchanged(std::uint32_t source) const {
  const Entry& entry = entries_[source];
  if (!entry.first) return {};
  return check_identity(entry.path, entry.identity, *entry.current.load());
}

Status Sources::check_unchanged() const {
  for (std::uint32_t i = 0; i < entries_.size(); ++i)
    if (auto s = check_unchanged(i); !s) return s;
  return {};
}

std::string Sources::buffered_note() const {
  const std::lock_guard lock(mutex_);
  return note_;
}

void Sources::drop_caches() {
  for (std::uint32_t i = 0; i < entries_.size(); ++i) drop_cache(i, 0, 0);
}

}  // namespace wcache

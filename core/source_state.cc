#include "core/source_state.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <map>
#include <string>
#include <string_view>
#include <utility>

namespace wcache {
namespace {

// Changes with anything in core/digest.h that changes a file's digest.
constexpr std::string_view kSubjectVersion = "wcache-subject 1";

/// File systems whose ctime is no evidence: images made elsewhere that store no ctime and number their inodes
/// from one (and whose device number the next image gets), creation times, or what a user's program says.
constexpr std::array<long, 9> kNoChangeTime{
    0x73717368,  // squashfs
    0x9660,      // iso9660
    0x15013346,  // udf
    0xE0F5E1E2,  // erofs
    0x28cd3d45,  // cramfs
    0x7275,      // romfs
    0x4d44,      // vfat
    0x2011BAB0,  // exfat
    0x65735546,  // fuse
};

bool keeps_change_time(int fd) {
  struct statfs fs {};
  if (fstatfs(fd, &fs) != 0) return false;
  return std::find(kNoChangeTime.begin(), kNoChangeTime.end(), static_cast<long>(fs.f_type)) ==
         kNoChangeTime.end();
}

/// "blobs/<64 hex digits>" of a hub cache names the content's SHA-256; empty for any other path.
std::string hub_blob(const std::filesystem::path& path) {
  std::string name = path.filename().string();
  const bool hex = name.size() == 64 && name.find_first_not_of("0123456789abcdef") == std::string::npos;
  return hex && path.parent_path().filename() == "blobs" ? name : std::string();
}

std::string changes(const FileIdentity& then, const FileIdentity& now) {
  std::string text;
  const auto add = [&](std::string_view what, auto a, auto b) {
    if (a == b) return;
    text +=
        (text.empty() ? "" : ", ") + std::string(what) + " " + std::to_string(a) + " -> " + std::to_string(b);
  };
  add("size", then.nbytes, now.nbytes);
  add("device", then.device, now.device);
  add("inode", then.inode, now.inode);
  add("mtime", then.mtime_ns, now.mtime_ns);
  add("ctime", then.ctime_ns, now.ctime_ns);
  return text;
}

constexpr const char* kStaleHint = "wait until nobody writes the checkpoint any more, then try again";

/// A description whose digest is the subject. Numbers are 64 bits, text comes with its length.
class Description {
 public:
  void add(std::uint64_t value) {
    for (int i = 0; i < 8; ++i) text_.push_back(static_cast<char>(value >> (8 * i) & 0xff));
  }
  void add(std::int64_t value) { add(static_cast<std::uint64_t>(value)); }
  void add(std::string_view text) {
    add(std::uint64_t{text.size()});
    text_ += text;
  }
  Digest digest() const { return digest_of(text_); }

 private:
  std::string text_;
};

}  // namespace

Result<Fd> open_source(const SourceFile& source) {
  Result<Fd> fd = open_file(source.path.c_str(), O_RDONLY | O_NOCTTY | O_NONBLOCK);
  if (!fd && (fd.error().errnum == ENOENT || fd.error().errnum == ENOTDIR))
    return fail(Reason::stale, source.path.string() + " is gone: it was there when the checkpoint was opened",
                kStaleHint);
  if (!fd) return fd;
  if (Status same = check_source(fd->get(), source, 0); !same) return fail(same.error());
  return fd;
}

Status check_source(int fd, const SourceFile& source, std::uint64_t offset) {
  struct stat st {};
  if (fstat(fd, &st) != 0) return fail_errno("looking at " + source.path.string(), errno);
  const FileIdentity now = FileIdentity::of(st);
  if (now == source.identity) return {};
  return fail(Reason::stale,
              source.path.string() + " changed while it was in use, noticed at byte " +
                  std::to_string(offset) + " (" + changes(source.identity, now) + ")",
              kStaleHint);
}

std::vector<SourceState> states_of(const EntryPlan& plan) {
  std::vector<SourceState> states;
  states.reserve(plan.sources.size());
  for (const SourceFile& source : plan.sources) {
    Result<Fd> fd = open_source(source);
    if (fd)
      states.push_back({std::nullopt, keeps_change_time(fd->get())});
    else
      states.push_back({std::move(fd.error()), false});
  }
  return states;
}

Digest subject_of(const EntryPlan& plan, const ImagePlan& image) {
  Description subject;
  subject.add(kSubjectVersion);
  subject.add(kHashBlock);
  subject.add(image.nbytes);
  subject.add(image.head);
  std::map<std::uint32_t, std::uint64_t> ordinals;  // sources in the order of first use
  for (const Piece& piece : image.pieces) {
    const auto [at, fresh] = ordinals.try_emplace(piece.source, ordinals.size());
    subject.add(at->second);
    if (fresh) {
      const SourceFile& source = plan.sources[piece.source];
      subject.add(source.identity.device);
      subject.add(source.identity.inode);
      subject.add(source.identity.nbytes);
      subject.add(source.identity.mtime_ns);
      subject.add(source.identity.ctime_ns);
      subject.add(hub_blob(source.path));
    }
    subject.add(piece.image_offset);
    subject.add(piece.source_offset);
    subject.add(piece.nbytes);
  }
  subject.add(std::uint64_t{image.segments.size()});
  for (const Segment& segment : image.segments) {
    subject.add(segment.offset);
    subject.add(segment.nbytes);
  }
  return subject.digest();
}

}  // namespace wcache

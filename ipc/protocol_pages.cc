#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ipc/message.h"
#include "ipc/protocol.h"

namespace wcache {
namespace {

constexpr std::size_t kMaxHolders = 128;
constexpr std::size_t kMaxCommand = 200;
constexpr std::size_t kMaxText = 4096;
/// What one page of a status may hold by estimate; the rest of kMaxMessageBytes is the frame's.
constexpr std::size_t kPageBytes = kMaxMessageBytes * 3 / 4;

/// No less than what the parts take on the wire: offsets, lengths, padding and tables included.
std::size_t estimate(const std::vector<Holder>& holders) {
  std::size_t nbytes = 16;
  for (const Holder& holder : holders) nbytes += 56 + holder.command.size();
  return nbytes;
}

std::size_t estimate(const RankStatus& rank) {
  std::size_t nbytes = 512 + estimate(rank.holders);
  for (const std::string* part : {&rank.role, &rank.name, &rank.fingerprint, &rank.layout, &rank.source,
                                  &rank.reason, &rank.message, &rank.hint, &rank.device_uuid, &rank.tier,
                                  &rank.pages, &rank.socket, &rank.fill_path, &rank.ipc_kind})
    nbytes += part->size();
  return nbytes;
}

void shorten(std::string& text, std::size_t most) {
  constexpr std::string_view kCut = " ...";
  if (text.size() > most) text = text.substr(0, most - kCut.size()) + std::string(kCut);
}

void fit(RankStatus& rank) {
  if (!fit_holders(rank.holders)) rank.holders_complete = false;
  for (std::string* part : {&rank.message, &rank.hint}) shorten(*part, kMaxText);
}

}  // namespace

std::vector<Descriptors> descriptor_pages(std::size_t count) {
  std::vector<Descriptors> pages;
  for (std::size_t first = 0; first < count; first += kMaxMessageFds)
    pages.push_back({static_cast<std::uint32_t>(first),
                     static_cast<std::uint32_t>(std::min(kMaxMessageFds, count - first))});
  return pages;
}

bool fit_holders(std::vector<Holder>& holders) {
  for (Holder& holder : holders) shorten(holder.command, kMaxCommand);
  if (holders.size() <= kMaxHolders) return true;
  holders.resize(kMaxHolders);
  return false;
}

std::vector<GroupFiles> file_pages_of(const std::vector<Key::File>& files) {
  std::vector<GroupFiles> pages(1);
  std::size_t used = 0;
  for (const Key::File& file : files) {
    const std::size_t nbytes = 72 + file.name.size();
    if (used > 0 && used + nbytes > kPageBytes) {
      pages.back().more = true;
      pages.emplace_back();
      used = 0;
    }
    used += nbytes;
    pages.back().files.push_back(file);
  }
  return pages;
}

std::vector<StatusReply> pages_of(StatusReply status) {
  std::vector<StatusReply> pages(1);
  std::size_t used = 0;
  const auto make_room = [&](std::size_t nbytes) {
    if (used > 0 && used + nbytes > kPageBytes) {
      pages.back().more = true;
      pages.emplace_back();
      used = 0;
    }
    used += nbytes;
  };
  std::vector<std::string> entries = std::move(status.mount.entries);
  std::vector<PairRequest> pairs = std::move(status.mount.pairs);
  pages.front().mount = std::move(status.mount);
  shorten(pages.front().mount.reason, kMaxText);
  used = 256 + pages.front().mount.path.size() + pages.front().mount.reason.size();
  for (std::string& entry : entries) {
    make_room(entry.size() + 16);
    pages.back().mount.entries.push_back(std::move(entry));
  }
  for (PairRequest& pair : pairs) {
    make_room(pair.target.size() + pair.draft.size() + 48);
    pages.back().mount.pairs.push_back(std::move(pair));
  }
  for (RankStatus& rank : status.ranks) {
    fit(rank);
    make_room(estimate(rank));
    pages.back().ranks.push_back(std::move(rank));
  }
  for (StatusReply& page : pages) page.pid = status.pid;
  return pages;
}

}  // namespace wcache

#include "client/attached_entry.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "client/entry_ref.h"
#include "core/format.h"
#include "core/sealed.h"

namespace wcache {
namespace {

Status check_serves(const GroupStatus& group) {
  switch (group.state) {
    case State::ready:
    case State::stale:
      return {};
    case State::starting:
    case State::filling:
      return fail(Reason::not_ready, title_of(group) + " is " + std::string(to_string(group.state)),
                  "wait for it: wcache wait, or wait_ms");
    case State::orphaned:
      return fail(Reason::not_running, "the daemon of " + title_of(group) + " has died",
                  group.path.empty() ? "preload it again" : "its files can still be read in " + group.path);
    case State::failed:
      break;
  }
  return fail(reason_from_string(group.reason), title_of(group) + " failed: " + group.message, group.hint);
}

/// The name that a daemon shows in its lists of holders.
std::string command_of_this_process() {
  return program_invocation_name;
}

}  // namespace

AttachedEntry::AttachedEntry(const GroupStatus& group)
    : role_(group.role),
      fingerprint_(group.fingerprint),
      name_(group.name),
      layout_(group.layout),
      source_(group.source) {}

Result<std::unique_ptr<AttachedEntry>> AttachedEntry::attach(const GroupStatus& group,
                                                             std::optional<std::uint32_t> rank,
                                                             Deadline deadline) {
  if (Status serves = check_serves(group); !serves) return fail(std::move(serves.error()));
  std::unique_ptr<AttachedEntry> entry(new AttachedEntry(group));
  for (const RankStatus& candidate : group.ranks) {
    if (rank && candidate.rank != *rank) continue;
    if (Status added = entry->add(candidate, deadline); !added) return fail(std::move(added.error()));
  }
  if (entry->parts_.empty())
    return fail(Reason::not_found,
                title_of(group) + " has no rank " + std::to_string(rank.value_or(0)) + " on this node", {},
                "rank");
  const std::size_t expected = rank ? 1 : entry->parts_.front().manifest.node_ranks();
  if (entry->parts_.size() != expected)
    return fail(Reason::not_ready, std::to_string(entry->parts_.size()) + " of " + std::to_string(expected) +
                                       " ranks of " + title_of(group) + " are served");
  return entry;
}

Status AttachedEntry::check_belongs(const ManifestView& manifest) const {
  if (manifest.role() != role_ || to_hex(manifest.fingerprint()) != fingerprint_)
    return fail(Reason::mismatch, "the daemon of " + role_ + "/" + fingerprint_ + " handed out " +
                                      printable(manifest.role()) + "/" + to_hex(manifest.fingerprint()));
  const Placement placement = manifest.placement();
  if (placement.tier != "host")
    return fail(Reason::unsupported, role_ + "/" + fingerprint_ + " is in memory of tier '" +
                                         printable(placement.tier) + "'; this library maps host memory only");
  return {};
}

Result<std::vector<std::unique_ptr<AttachedEntry::Image>>> AttachedEntry::take_images(
    const ManifestView& manifest, std::vector<Fd> fds) {
  if (fds.size() != manifest.file_count())
    return fail(Reason::corrupt, "the daemon sent " + std::to_string(fds.size()) +
                                     " files, its manifest lists " + std::to_string(manifest.file_count()));
  std::vector<std::unique_ptr<Image>> images;
  for (std::size_t row = 0; row < fds.size(); ++row) {
    const std::optional<ManifestView::File> file = manifest.file(row);
    if (!file) return fail(Reason::corrupt, "file " + std::to_string(row) + " of the manifest is damaged");
    if (Status sealed = check_sealed(fds[row].get(), file->nbytes); !sealed)
      return fail(sealed.error().reason, printable(file->name) + ": " + sealed.error().message);
    auto image = std::make_unique<Image>();
    image->name = file->name;
    image->nbytes = file->nbytes;
    image->fd = std::move(fds[row]);
    images.push_back(std::move(image));
  }
  return images;
}

Status AttachedEntry::add(const RankStatus& rank, Deadline deadline) {
  Result<Client> client = Client::connect(rank.socket, Purpose::client, command_of_this_process(), deadline);
  if (!client) return fail(std::move(client.error()));
  Result<Attachment> attachment = client->attach(deadline);
  if (!attachment) return fail(std::move(attachment.error()));
  if (Status sealed = check_sealed(attachment->manifest.get(), attachment->manifest_nbytes); !sealed)
    return fail(sealed.error().reason, "the manifest: " + sealed.error().message);
  Result<Mapping> bytes = Mapping::map(attachment->manifest.get(), attachment->manifest_nbytes, PROT_READ,
                                       MAP_SHARED, "the manifest");
  if (!bytes) return fail(std::move(bytes.error()));
  Result<ManifestView> manifest = ManifestView::open(bytes->bytes());
  if (!manifest) return fail(std::move(manifest.error()));
  if (Status belongs = check_belongs(*manifest); !belongs) return belongs;
  auto images = take_images(*manifest, std::move(attachment->images));
  if (!images) return fail(std::move(images.error()));

  tensor_count_ += manifest->tensor_count();
  nbytes_ += manifest->nbytes();
  parts_.push_back({client->release(), std::move(*bytes), *manifest, std::move(*images)});
  return {};
}

Result<const std::byte*> AttachedEntry::data_of(Image& image) {
  if (const std::byte* data = image.data.load(std::memory_order_acquire); data != nullptr) return data;
  const std::lock_guard lock(image.mutex);
  if (image.mapping.data() == nullptr) {
    Result<Mapping> mapping =
        Mapping::map(image.fd.get(), image.nbytes, PROT_READ, MAP_SHARED, printable(image.name));
    if (!mapping) return fail(std::move(mapping.error()));
    image.mapping = std::move(*mapping);
    image.fd.reset();
    image.data.store(image.mapping.data(), std::memory_order_release);
  }
  return image.mapping.data();
}

Result<AttachedEntry::Tensor> AttachedEntry::tensor_of(const Part& part, std::size_t row) {
  const std::optional<ManifestView::Tensor> found = part.manifest.tensor(row);
  if (!found) return fail(Reason::corrupt, "row " + std::to_string(row) + " of the tensor table is damaged");
  Image& image = *part.images[found->file];
  Tensor tensor{*found, nullptr, image.name.c_str(), part.manifest.rank()};
  if (found->nbytes == 0) return tensor;
  const Result<const std::byte*> data = data_of(image);
  if (!data) return fail(data.error());
  tensor.data = *data + found->offset;
  return tensor;
}

Result<AttachedEntry::Tensor> AttachedEntry::tensor(std::size_t number) const {
  std::size_t row = number;
  for (const Part& part : parts_) {
    if (row < part.manifest.tensor_count()) return tensor_of(part, row);
    row -= part.manifest.tensor_count();
  }
  return fail(Reason::invalid, "there is no tensor " + std::to_string(number) + ": " + role_ + "/" +
                                   fingerprint_ + " has " + std::to_string(tensor_count_));
}

Result<AttachedEntry::Tensor> AttachedEntry::find(std::string_view name) const {
  std::optional<std::pair<const Part*, std::size_t>> first;
  for (const Part& part : parts_) {
    const std::optional<std::size_t> row = part.manifest.find_tensor(name);
    if (!row) continue;
    if (!first) {
      first = {&part, *row};
      continue;
    }
    const auto one = first->first->manifest.tensor(first->second);
    const auto other = part.manifest.tensor(*row);
    const bool same =
        one && other && one->digest == other->digest && one->dtype == other->dtype &&
        std::equal(one->shape.begin(), one->shape.end(), other->shape.begin(), other->shape.end());
    if (!same)
      return fail(Reason::invalid, "several ranks have a tensor '" + printable(name) + "' of their own",
                  "open one rank, or iterate over all tensors", "rank");
  }
  if (first) return tensor_of(*first->first, first->second);
  return fail(Reason::not_found, "no tensor '" + printable(name) + "' in " + role_ + "/" + fingerprint_);
}

}  // namespace wcache

#include "client/attached_part.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "core/format.h"
#include "core/sealed.h"

namespace wcache {
namespace {

/// The name that a daemon shows in its lists of holders.
std::string command_of_this_process() {
  return program_invocation_name;
}

Status check_belongs(const ExactEntry& entry, const ManifestView& manifest, const Attachment& attachment) {
  const std::string title = entry.role + "/" + entry.fingerprint;
  if (manifest.role() != entry.role || to_hex(manifest.fingerprint()) != entry.fingerprint)
    return fail(Reason::mismatch, "the daemon of " + title + " handed out " + printable(manifest.role()) +
                                      "/" + to_hex(manifest.fingerprint()));
  const Placement placement = manifest.placement();
  const bool vmm = placement.tier == "cuda" && placement.ipc_kind == "cuda-vmm";
  const bool legacy = placement.tier == "cuda" && placement.ipc_kind == "cuda-ipc";
  if (!vmm && !legacy && placement.tier != "host")
    return fail(Reason::unsupported, title + " is in memory of tier '" + printable(placement.tier) +
                                         "', shared as '" + printable(placement.ipc_kind) +
                                         "', which this library does not know");
  if (attachment.slabs.size() != (vmm ? manifest.slab_count() : 0) ||
      attachment.handles.size() != (legacy ? manifest.slab_count() : 0))
    return fail(Reason::corrupt, "the daemon sent " + std::to_string(attachment.slabs.size()) +
                                     " slabs and " + std::to_string(attachment.handles.size()) +
                                     " handles, its manifest lists " + std::to_string(manifest.slab_count()) +
                                     " of kind " + printable(placement.ipc_kind));
  return {};
}

/// From another PID namespace a process's own number is not the one that the kernel shows for it.
bool in_this_pid_namespace(Client& daemon) {
  const Result<Peer> peer = daemon.connection().peer();
  return peer && peer->pid == daemon.server_pid();
}

}  // namespace

Result<std::unique_ptr<AttachedPart>> AttachedPart::attach(const ExactEntry& entry, const Door& door,
                                                           ImportedSlabs& slabs, Deadline deadline) {
  Result<Client> client = Client::connect(door.socket, Purpose::client, command_of_this_process(), deadline);
  if (!client) return fail(std::move(client.error()));
  const bool here = in_this_pid_namespace(*client);
  Result<Attachment> attachment = client->attach(deadline, door.request);
  if (!attachment) return fail(std::move(attachment.error()));
  if (Status sealed = check_sealed(attachment->manifest.get(), attachment->manifest_nbytes); !sealed)
    return fail(sealed.error().reason, "the manifest: " + sealed.error().message);
  Result<Mapping> bytes = Mapping::map(attachment->manifest.get(), attachment->manifest_nbytes, PROT_READ,
                                       MAP_SHARED, "the manifest");
  if (!bytes) return fail(std::move(bytes.error()));
  const Result<ManifestView> manifest = ManifestView::open(bytes->bytes());
  if (!manifest) return fail(manifest.error());
  if (Status belongs = check_belongs(entry, *manifest, *attachment); !belongs)
    return fail(std::move(belongs.error()));

  std::unique_ptr<AttachedPart> part(
      new AttachedPart(client->release(), std::move(*bytes), *manifest, slabs));
  part->same_pid_namespace_ = here;
  if (Status taken = part->take_images(std::move(attachment->images)); !taken)
    return fail(std::move(taken.error()));
  part->take_slabs(*attachment);
  return part;
}

Status AttachedPart::take_images(std::vector<Fd> fds) {
  std::size_t next = 0;
  images_.reserve(manifest_.file_count());
  for (std::size_t row = 0; row < manifest_.file_count(); ++row) {
    const std::optional<ManifestView::File> file = manifest_.file(row);
    if (!file) return fail(Reason::corrupt, "file " + std::to_string(row) + " of the manifest is damaged");
    Image& image = images_.emplace_back();
    image.name = file->name;
    if (manifest_.on_device(*file)) continue;
    if (next == fds.size())
      return fail(Reason::corrupt, "the daemon sent " + std::to_string(fds.size()) +
                                       " files, its manifest lists more of them");
    const Fd fd = std::move(fds[next++]);
    if (Status sealed = check_sealed(fd.get(), file->nbytes); !sealed)
      return fail(sealed.error().reason, printable(file->name) + ": " + sealed.error().message);
    Result<Mapping> mapping =
        Mapping::map(fd.get(), file->nbytes, PROT_READ, MAP_SHARED, printable(file->name));
    if (!mapping) return fail(std::move(mapping.error()));
    image.mapping = std::move(*mapping);
  }
  if (next == fds.size()) return {};
  return fail(Reason::corrupt, "the daemon sent " + std::to_string(fds.size()) +
                                   " files, its manifest lists " + std::to_string(next));
}

void AttachedPart::take_slabs(Attachment& attachment) {
  instance_ = std::move(attachment.instance);
  for (Fd& fd : attachment.slabs) {
    slabs_.push_back(std::make_unique<Slab>());
    slabs_.back()->fd = std::move(fd);
  }
  for (const DeviceHandle& handle : attachment.handles) {
    slabs_.push_back(std::make_unique<Slab>());
    slabs_.back()->handle = handle;
  }
}

Result<const ImportedSlab*> AttachedPart::imported(std::size_t number) const {
  if (number >= slabs_.size())
    return fail(Reason::corrupt, "a tensor is in slab " + std::to_string(number) + ", there are " +
                                     std::to_string(slabs_.size()));
  Slab& slab = *slabs_[number];
  const ImportedSlab* there = slab.imported.load(std::memory_order_acquire);
  if (there != nullptr) {
    if (Status ours = there->check_process(); !ours) return fail(std::move(ours.error()));
    return there;
  }
  OfferedSlab offer;
  offer.device_uuid = placement_.device_uuid;
  offer.instance = instance_;
  offer.slab = static_cast<std::uint32_t>(number);
  offer.nbytes = manifest_.slab_nbytes(number);
  offer.fd = slab.fd.get();
  offer.handle = slab.handle;
  offer.same_pid_namespace = same_pid_namespace_;
  Result<ImportedSlab> import = imported_.import(offer);
  if (!import) return fail(std::move(import.error()));
  auto own = std::make_unique<const ImportedSlab>(std::move(*import));
  if (slab.imported.compare_exchange_strong(there, own.get(), std::memory_order_acq_rel))
    return own.release();
  return there;  // another thread's use of the same mapping
}

Result<AttachedTensor> AttachedPart::describe(std::size_t row) const {
  const std::optional<ManifestView::Tensor> found = manifest_.tensor(row);
  if (!found) return fail(Reason::corrupt, "row " + std::to_string(row) + " of the tensor table is damaged");
  const Image& image = images_[found->file];
  AttachedTensor tensor;
  tensor.row = *found;
  tensor.rank = manifest_.rank();
  tensor.file = image.name.c_str();
  if (!slabs_.empty()) {
    tensor.device = kDeviceNotAsked;
    tensor.read_only = false;
  } else if (found->nbytes > 0) {
    tensor.base = image.mapping.data();
    tensor.base_nbytes = image.mapping.size();
    tensor.data = tensor.base + found->offset;
  }
  return tensor;
}

Result<AttachedTensor> AttachedPart::tensor(std::size_t row) const {
  Result<AttachedTensor> tensor = describe(row);
  if (!tensor || slabs_.empty()) return tensor;
  const Result<const ImportedSlab*> slab = imported(tensor->row.slab);
  if (!slab) return fail(slab.error());
  tensor->device = (*slab)->ordinal();
  tensor->read_only = (*slab)->read_only();
  if (tensor->row.nbytes == 0) return tensor;
  tensor->base = static_cast<const std::byte*>((*slab)->data());
  tensor->base_nbytes = (*slab)->nbytes();
  tensor->data = tensor->base + tensor->row.slab_offset;
  return tensor;
}

Status AttachedPart::read(std::size_t row, std::uint64_t offset, std::span<std::byte> out) const {
  const Result<AttachedTensor> tensor = describe(row);
  if (!tensor) return fail(tensor.error());
  const std::uint64_t nbytes = tensor->row.nbytes;
  if (offset > nbytes || out.size() > nbytes - offset)
    return fail(Reason::invalid, printable(tensor->row.name) + " of " + std::to_string(nbytes) +
                                     " bytes has no " + std::to_string(out.size()) + " at " +
                                     std::to_string(offset));
  if (out.empty()) return {};
  if (slabs_.empty()) {
    std::memcpy(out.data(), tensor->data + offset, out.size());
    return {};
  }
  const Result<const ImportedSlab*> slab = imported(tensor->row.slab);
  if (!slab) return fail(slab.error());
  return (*slab)->read(tensor->row.slab_offset + offset, out);
}

}  // namespace wcache

#include "fs/part.h"

#include <sys/mman.h>

#include <utility>

#include "core/sealed.h"

namespace wcache {
namespace {

Result<Mapping> map_whole(int fd, std::uint64_t nbytes, const std::string& what) {
  if (Status sealed = check_sealed(fd, nbytes); !sealed) {
    sealed.error().message = what + ": " + sealed.error().message;
    return fail(std::move(sealed.error()));
  }
  return Mapping::map(fd, nbytes, PROT_READ, MAP_SHARED, what);
}

}  // namespace

Result<std::shared_ptr<const Part>> Part::make(Attachment attachment, int daemon_pid, std::string socket,
                                               spdlog::logger& log) {
  Result<Mapping> bytes = map_whole(attachment.manifest.get(), attachment.manifest_nbytes, "the manifest");
  if (!bytes) return fail(std::move(bytes.error()));
  Result<ManifestView> view = ManifestView::open(bytes->bytes());
  if (!view) return fail(std::move(view.error()));
  std::shared_ptr<Part> part(
      new Part(std::move(attachment.manifest), std::move(*bytes), *view, daemon_pid, std::move(socket), log));
  if (Status adopted = part->adopt_images(std::move(attachment.images)); !adopted)
    return fail(std::move(adopted.error()));
  if (Status adopted = part->adopt_slabs(std::move(attachment.slabs), std::move(attachment.handles),
                                         std::move(attachment.instance));
      !adopted)
    return fail(std::move(adopted.error()));
  return part;
}

Status Part::adopt_images(std::vector<Fd> images) {
  const auto disagree = [this, count = images.size()] {
    return fail(Reason::corrupt, std::to_string(count) + " images for the manifest's " +
                                     std::to_string(manifest_.file_count()) + " files");
  };
  std::size_t used = 0;
  images_.reserve(manifest_.file_count());
  for (std::size_t row = 0; row < manifest_.file_count(); ++row) {
    const std::optional<ManifestView::File> file = manifest_.file(row);
    if (!file)
      return fail(Reason::corrupt, "the manifest's file row " + std::to_string(row) + " points outside");
    Image& image = images_.emplace_back();
    if (manifest_.on_device(*file)) continue;
    if (used == images.size()) return disagree();
    image.fd = std::move(images[used++]);
    Result<Mapping> bytes =
        map_whole(image.fd.get(), file->nbytes, "the image of " + std::string(file->name));
    if (!bytes) return fail(std::move(bytes.error()));
    image.bytes = std::move(*bytes);
  }
  if (used != images.size()) return disagree();
  return {};
}

Status Part::adopt_slabs(std::vector<Fd> slabs, std::vector<DeviceHandle> handles, std::string instance) {
  const std::string kind = manifest_.placement().ipc_kind;
  const std::size_t count = manifest_.slab_count();
  if (slabs.size() != (kind == kIpcVmm ? count : 0) || handles.size() != (kind == kIpcLegacy ? count : 0) ||
      (count > 0 && kind != kIpcVmm && kind != kIpcLegacy))
    return fail(Reason::corrupt, std::to_string(slabs.size()) + " descriptors and " +
                                     std::to_string(handles.size()) + " handles for the manifest's " +
                                     std::to_string(count) + " slabs of kind " + kind);
  slabs_ = std::move(slabs);
  handles_ = std::move(handles);
  instance_ = std::move(instance);
  return {};
}

std::vector<int> Part::descriptors() const {
  std::vector<int> all{manifest_fd_.get()};
  for (const Image& image : images_)
    if (image.fd) all.push_back(image.fd.get());
  for (const Fd& slab : slabs_) all.push_back(slab.get());
  return all;
}

std::uint64_t Part::slabs_nbytes() const {
  std::uint64_t sum = 0;
  for (std::size_t slab = 0; slab < manifest_.slab_count(); ++slab) sum += manifest_.slab_nbytes(slab);
  return sum;
}

void Part::read(std::uint32_t row, std::uint64_t offset, std::size_t nbytes,
                DeviceReads::Answer answer) const {
  reads_.read(row, offset, nbytes, std::move(answer));
}

}  // namespace wcache

#include "fs/part.h"

#include <sys/mman.h>

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

Result<std::shared_ptr<const Part>> Part::make(Fd manifest, std::uint64_t manifest_nbytes,
                                               std::vector<Fd> images, int daemon_pid, std::string socket) {
  Result<Mapping> bytes = map_whole(manifest.get(), manifest_nbytes, "the manifest");
  if (!bytes) return fail(std::move(bytes.error()));
  Result<ManifestView> view = ManifestView::open(bytes->bytes());
  if (!view) return fail(std::move(view.error()));
  std::shared_ptr<Part> part(new Part(std::move(manifest), std::move(*bytes), *view));
  part->daemon_pid_ = daemon_pid;
  part->socket_ = std::move(socket);
  if (Status adopted = part->adopt_images(std::move(images)); !adopted)
    return fail(std::move(adopted.error()));
  return part;
}

Status Part::adopt_images(std::vector<Fd> images) {
  if (images.size() != manifest_.file_count())
    return fail(Reason::corrupt, std::to_string(images.size()) + " images for the manifest's " +
                                     std::to_string(manifest_.file_count()) + " files");
  images_.reserve(images.size());
  for (std::size_t row = 0; row < images.size(); ++row) {
    const std::optional<ManifestView::File> file = manifest_.file(row);
    if (!file)
      return fail(Reason::corrupt, "the manifest's file row " + std::to_string(row) + " points outside");
    Result<Mapping> bytes =
        map_whole(images[row].get(), file->nbytes, "the image of " + std::string(file->name));
    if (!bytes) return fail(std::move(bytes.error()));
    images_.push_back({std::move(images[row]), std::move(*bytes)});
  }
  return {};
}

}  // namespace wcache

#include "fs/device_xattrs.h"

#include <cstddef>
#include <optional>
#include <string_view>
#include <utility>

namespace wcache {
namespace {

/// What gives access to one slab of a part: nullopt when nothing does any more.
std::optional<std::string> handle_of(const Part& part, std::size_t slab, const std::string& control_socket) {
  if (slab < part.slabs().size()) {
    const std::string number = "slab=" + std::to_string(slab);
    if (part.has_daemon()) return number + " socket=" + part.socket();
    const ManifestView& manifest = part.manifest();
    return number + " role=" + std::string(manifest.role()) +
           " fingerprint=" + to_hex(manifest.fingerprint()) + " rank=" + std::to_string(manifest.rank()) +
           " socket=" + control_socket;
  }
  if (slab >= part.handles().size() || !part.has_daemon()) return std::nullopt;
  const DeviceHandle& handle = part.handles()[slab];
  return std::string(reinterpret_cast<const char*>(handle.data()), handle.size());
}

void add_handles(std::vector<DeviceXattr>& to, const std::string& prefix, const Part& part,
                 const std::string& control_socket) {
  const std::size_t count = part.manifest().slab_count();
  for (std::size_t slab = 0; slab < count; ++slab)
    if (std::optional<std::string> handle = handle_of(part, slab, control_socket))
      to.push_back(
          {prefix + "ipc_handle" + (count > 1 ? "." + std::to_string(slab) : ""), std::move(*handle), true});
}

std::vector<DeviceXattr> of_file(const Entry& entry, const Entry::File& file,
                                 const std::string& control_socket) {
  std::vector<DeviceXattr> rows;
  add_handles(rows, {}, entry.part_of(file), control_socket);
  const std::string_view name = entry.row_of(file).name;
  for (std::size_t p = file.part + std::size_t{1}; p < entry.parts().size(); ++p) {
    const Part& part = *entry.parts()[p];
    const std::optional<std::size_t> row = part.manifest().find_file(name);
    if (!row || !part.on_device(*row)) continue;
    const std::string prefix = "rank" + std::to_string(part.manifest().rank()) + ".";
    rows.push_back({prefix + "device_uuid", part.manifest().placement().device_uuid});
    rows.push_back({prefix + "ipc_size", std::to_string(part.slabs_nbytes())});
    add_handles(rows, prefix, part, control_socket);
  }
  return rows;
}

std::vector<DeviceXattr> of_tensor(const Entry& entry, std::uint64_t number,
                                   const std::string& control_socket) {
  const std::optional<ManifestView::Tensor> tensor = entry.tensor(number);
  const Part& part = *entry.parts()[entry.tensor_ref(number).part];
  if (!tensor || part.manifest().slab_count() == 0) return {};
  std::vector<DeviceXattr> rows;
  if (std::optional<std::string> handle = handle_of(part, tensor->slab, control_socket))
    rows.push_back({"ipc_handle", std::move(*handle), true});
  rows.push_back({"ipc_offset", std::to_string(tensor->slab_offset)});
  rows.push_back({"ipc_slab", std::to_string(tensor->slab)});
  return rows;
}

}  // namespace

std::vector<DeviceXattr> device_xattrs(const Node& node, const std::string& control_socket) {
  if (node.kind == NodeKind::tensor) return of_tensor(*node.entry, node.index, control_socket);
  if (node.kind != NodeKind::file) return {};
  const Entry::File& file = node.entry->files()[node.index];
  if (!node.entry->part_of(file).on_device(file.row)) return {};
  return of_file(*node.entry, file, control_socket);
}

}  // namespace wcache

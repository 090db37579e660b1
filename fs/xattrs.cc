#include "fs/xattrs.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "core/version.h"
#include "fs/device_xattrs.h"
#include "ipc/protocol.h"

namespace wcache {
namespace {

constexpr std::string_view kPrefix = "user.wcache.";

using Value = std::optional<std::string>;

/// One row of the table of attributes: its name after the prefix, and its value on a node of the row's table.
struct Row {
  std::string_view name;
  Value (*value)(const Node& node, const XattrContext& context);
};

/// Values are one line: what a checkpoint's own words could break is replaced.
Value line(std::string_view text) {
  if (text.empty()) return std::nullopt;
  std::string out(text);
  std::replace_if(
      out.begin(), out.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }, '?');
  return out;
}
Value number(std::uint64_t value) {
  return std::to_string(value);
}

const ManifestView& manifest_of(const Node& node) {
  const Entry& entry = *node.entry;
  if (node.kind == NodeKind::file) return entry.part_of(entry.files()[node.index]).manifest();
  if (node.kind == NodeKind::tensor) return entry.parts()[entry.tensor_ref(node.index).part]->manifest();
  return entry.manifest();
}

ManifestView::File file_of(const Node& node) {
  return node.entry->row_of(node.entry->files()[node.index]);
}
ManifestView::Tensor tensor_of(const Node& node) {
  return node.entry->tensor(node.index).value_or(ManifestView::Tensor{});
}

// What several kinds of node have.
Value role(const Node& node, const XattrContext&) {
  return std::string(to_string(node.entry->role()));
}
Value fingerprint(const Node& node, const XattrContext&) {
  return node.entry->directory_name();
}
Value state(const Node& node, const XattrContext&) {
  return std::string(to_string(node.entry->state()));
}
Value rank(const Node& node, const XattrContext&) {
  return number(manifest_of(node).rank());
}
Value tier(const Node& node, const XattrContext&) {
  return line(manifest_of(node).placement().tier);
}
Value device_uuid(const Node& node, const XattrContext&) {
  return line(manifest_of(node).placement().device_uuid);
}
Value ipc_kind(const Node& node, const XattrContext&) {
  return line(manifest_of(node).placement().ipc_kind);
}

/// The path of the other entry in the tree, where this one has the role.
Value partner_path(const Node& node, const XattrContext& context, Role role) {
  if (node.entry->role() != role) return std::nullopt;
  const std::shared_ptr<Entry> other = context.partner(*node.entry);
  if (!other) return std::nullopt;
  return line(context.mount + "/" + other->path());
}

constexpr std::array kRootRows{
    Row{"version", [](const Node&, const XattrContext&) { return line(version()); }},
    Row{"protocol", [](const Node&, const XattrContext&) { return number(kMaxProtocolVersion); }},
};

constexpr std::array kEntryRows{
    Row{"role", role},
    Row{"name", [](const Node& node, const XattrContext&) { return line(node.entry->name()); }},
    Row{"fingerprint", fingerprint},
    Row{"state", state},
    Row{"layout", [](const Node& node, const XattrContext&) { return line(manifest_of(node).layout()); }},
    Row{"source", [](const Node& node, const XattrContext&) { return line(manifest_of(node).source()); }},
    Row{"architecture",
        [](const Node& node, const XattrContext&) { return line(manifest_of(node).architecture()); }},
    Row{"dtype", [](const Node& node, const XattrContext&) { return line(manifest_of(node).dtype()); }},
    Row{"quantization",
        [](const Node& node, const XattrContext&) { return line(manifest_of(node).quantization()); }},
    Row{"tp_size", [](const Node& node, const XattrContext&) { return number(manifest_of(node).tp_size()); }},
    Row{"nbytes", [](const Node& node, const XattrContext&) { return number(node.entry->nbytes()); }},
    Row{"tensors", [](const Node& node, const XattrContext&) { return number(node.entry->tensor_count()); }},
    Row{"holders",
        [](const Node& node, const XattrContext& context) { return number(context.holders(*node.entry)); }},
    // The digest of everything below is the key's, which is the fingerprint.
    Row{"digest", fingerprint},
    Row{"draft", [](const Node& node,
                    const XattrContext& context) { return partner_path(node, context, Role::target); }},
    Row{"target", [](const Node& node,
                     const XattrContext& context) { return partner_path(node, context, Role::draft0); }},
};

/// Of what opening the file gives, or of all that lies on the device.
Value ipc_size(const Node& node, const XattrContext&) {
  const Entry::File& file = node.entry->files()[node.index];
  const Part& part = node.entry->part_of(file);
  return number(part.on_device(file.row) ? part.slabs_nbytes() : file_of(node).nbytes);
}

constexpr std::array kWeightRows{
    Row{"role", role},
    Row{"fingerprint", fingerprint},
    Row{"rank", rank},
    Row{"state", state},
    Row{"tier", tier},
    Row{"device_uuid", device_uuid},
    Row{"nbytes", [](const Node& node, const XattrContext&) { return number(file_of(node).nbytes); }},
    Row{"tensors", [](const Node& node, const XattrContext&) { return number(file_of(node).tensors); }},
    Row{"digest", [](const Node& node, const XattrContext&) { return line(to_hex(file_of(node).digest)); }},
    Row{"ipc_kind", ipc_kind},
    Row{"ipc_size", ipc_size},
};

std::string shape_json(const ManifestView::Tensor& tensor) {
  std::string text = "[";
  for (const std::uint64_t n : tensor.shape) text += (text.size() > 1 ? ", " : "") + std::to_string(n);
  return text + "]";
}

std::string file_name(const Node& node) {
  const std::optional<ManifestView::File> file = manifest_of(node).file(tensor_of(node).file);
  return file ? std::string(file->name) : std::string();
}

constexpr std::array kTensorRows{
    Row{"dtype", [](const Node& node, const XattrContext&) { return line(tensor_of(node).dtype); }},
    Row{"shape", [](const Node& node, const XattrContext&) { return Value(shape_json(tensor_of(node))); }},
    Row{"nbytes", [](const Node& node, const XattrContext&) { return number(tensor_of(node).nbytes); }},
    Row{"digest", [](const Node& node, const XattrContext&) { return line(to_hex(tensor_of(node).digest)); }},
    Row{"rank", rank},
    Row{"file", [](const Node& node, const XattrContext&) { return line(file_name(node)); }},
    Row{"offset", [](const Node& node, const XattrContext&) { return number(tensor_of(node).offset); }},
    Row{"device_uuid", device_uuid},
    Row{"ipc_kind", ipc_kind},
};

std::span<const Row> rows_of(const Node& node) {
  switch (node.kind) {
    case NodeKind::root:
      return kRootRows;
    case NodeKind::directory:
      return node.index == 0 ? std::span<const Row>(kEntryRows) : std::span<const Row>();
    case NodeKind::file:
      return is_weights(file_of(node).kind) ? std::span<const Row>(kWeightRows) : std::span<const Row>();
    case NodeKind::tensor:
      return kTensorRows;
    default:
      return {};
  }
}

}  // namespace

bool is_own_xattr(std::string_view name) {
  return name.starts_with(kPrefix);
}

tl::expected<std::string, int> xattr_value(const Node& node, std::string_view name,
                                           const XattrContext& context) {
  if (!is_own_xattr(name)) return tl::unexpected(ENODATA);
  name.remove_prefix(kPrefix.size());
  for (const Row& row : rows_of(node))
    if (row.name == name)
      if (Value value = row.value(node, context)) return std::move(*value);
  for (DeviceXattr& row : device_xattrs(node, context.control_socket)) {
    if (row.name != name) continue;
    if (row.handle && !context.owner) return tl::unexpected(EACCES);
    return std::move(row.value);
  }
  return tl::unexpected(ENODATA);
}

bool is_slow_xattr(const Node& node, std::string_view name) {
  return node.is_entry_directory() && name == "user.wcache.holders";
}

std::vector<std::string> xattr_names(const Node& node, const XattrContext& context) {
  XattrContext quick = context;
  quick.holders = [](const Entry&) { return std::size_t{0}; };
  std::vector<std::string> names;
  for (const Row& row : rows_of(node))
    if (row.value(node, quick)) names.push_back(std::string(kPrefix) + std::string(row.name));
  for (const DeviceXattr& row : device_xattrs(node, context.control_socket))
    if (!row.handle || context.owner) names.push_back(std::string(kPrefix) + row.name);
  return names;
}

}  // namespace wcache

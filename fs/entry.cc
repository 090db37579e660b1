#include "fs/entry.h"

#include <algorithm>
#include <utility>

#include "core/manifest_json.h"

namespace wcache {
namespace {

constexpr std::size_t kNameMax = 255;  // NAME_MAX, bytes
constexpr std::string_view kMetaName = ".wcache";

auto child_position(const std::vector<Entry::Child>& children, std::string_view name) {
  return std::find_if(children.begin(), children.end(),
                      [&](const Entry::Child& child) { return child.name == name; });
}

/// What two parts of one entry must agree in.
Status check_same_group(const ManifestView& first, const ManifestView& other) {
  if (first.role() != other.role() || first.fingerprint() != other.fingerprint())
    return fail(Reason::mismatch, "ranks of different groups: " + std::string(first.role()) + "/" +
                                      to_hex(first.fingerprint()) + " and " + std::string(other.role()) +
                                      "/" + to_hex(other.fingerprint()));
  return {};
}

}  // namespace

bool is_component(std::string_view name) {
  return !name.empty() && name.size() <= kNameMax && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\0", 2)) == std::string_view::npos;
}

bool Entry::has_link() const {
  return is_component(name_);
}

Result<std::shared_ptr<Entry>> Entry::make(std::vector<std::shared_ptr<const Part>> parts, double since) {
  std::shared_ptr<Entry> entry(new Entry);
  const ManifestView& first = parts.front()->manifest();
  Result<Role> role = role_from_string(first.role());
  if (!role) return fail(Reason::corrupt, "the manifest names no role: '" + std::string(first.role()) + "'");
  entry->role_ = *role;
  entry->fingerprint_ = first.fingerprint();
  entry->directory_name_ = to_hex(entry->fingerprint_);
  entry->name_ = std::string(first.name());
  entry->since_ = since;
  entry->parts_ = std::move(parts);
  entry->directories_.emplace_back();
  entry->tensor_starts_ = {0};
  for (std::uint32_t p = 0; p < entry->parts_.size(); ++p) {
    const ManifestView& manifest = entry->parts_[p]->manifest();
    if (Status same = check_same_group(first, manifest); !same) return fail(std::move(same.error()));
    if (Status added = entry->add_part(p); !added) return fail(std::move(added.error()));
  }
  entry->sort_children();
  std::vector<ManifestView> manifests;
  for (const auto& part : entry->parts_) manifests.push_back(part->manifest());
  Result<std::string> text = wcache::fingerprint_json(manifests);
  if (!text) return fail(std::move(text.error()));
  entry->fingerprint_json_ = std::make_shared<const std::string>(std::move(*text));
  return entry;
}

Status Entry::add_part(std::uint32_t part) {
  const ManifestView& manifest = parts_[part]->manifest();
  bool own_weights = false;
  for (std::uint32_t row = 0; row < manifest.file_count(); ++row) {
    const std::optional<ManifestView::File> file = manifest.file(row);
    if (!file)
      return fail(Reason::corrupt, "the manifest's file row " + std::to_string(row) + " points outside");
    const Result<bool> shown = add_file(part, row, *file);
    if (!shown) return fail(shown.error());
    if (!*shown) continue;
    own_weights = own_weights || is_weights(file->kind);
    nbytes_ += file->nbytes;
    mtime_ns_ = std::max(mtime_ns_, file->mtime_ns);
  }
  // Ranks on several devices that each hold the whole checkpoint have the same tensors.
  tensor_starts_.push_back(tensor_starts_.back() + (own_weights ? manifest.tensor_count() : 0));
  return {};
}

/// Whether it is shown: false where an earlier part has the same file.
Result<bool> Entry::add_file(std::uint32_t part, std::uint32_t row, const ManifestView::File& file) {
  const std::string_view path = file.name;
  const std::size_t slash = path.rfind('/');
  std::uint32_t directory = 0;
  if (slash != std::string_view::npos) {
    Result<std::uint32_t> parent = directory_at(path.substr(0, slash));
    if (!parent) return fail(std::move(parent.error()));
    directory = *parent;
  }
  const auto index = static_cast<std::uint32_t>(files_.size());
  Child child{std::string(slash == std::string_view::npos ? path : path.substr(slash + 1)), false, index};
  const std::vector<Child>& children = directories_[directory].children;
  const auto earlier = child_position(children, child.name);
  if (part > 0 && earlier != children.end()) {
    const auto same = [&](const ManifestView::File& other) {
      return other.nbytes == file.nbytes && other.digest == file.digest;
    };
    if (earlier->is_directory || !same(row_of(files_[earlier->index])))
      return fail(Reason::mismatch, "ranks of one group have different files '" + std::string(path) + "'");
    return false;
  }
  if (Status added = add_child(directory, std::move(child), path); !added) return fail(added.error());
  files_.push_back({directory, part, row});
  return true;
}

Result<std::uint32_t> Entry::directory_at(std::string_view path) {
  std::uint32_t directory = 0;
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view name = path.substr(begin, end - begin);
    begin = end + 1;
    const std::vector<Child>& children = directories_[directory].children;
    const auto found = child_position(children, name);
    if (found != children.end() && found->is_directory) {
      directory = found->index;
      continue;
    }
    const auto index = static_cast<std::uint32_t>(directories_.size());
    if (Status added = add_child(directory, {std::string(name), true, index}, path); !added)
      return fail(std::move(added.error()));
    directories_.push_back({directory, {}});
    directory = index;
  }
  return directory;
}

Status Entry::add_child(std::uint32_t directory, Child child, std::string_view path) {
  std::vector<Child>& children = directories_[directory].children;
  if (!is_component(child.name))
    return fail(Reason::corrupt,
                "the manifest's file name '" + std::string(path) + "' is no path below a directory");
  if (directory == 0 && child.name == kMetaName)
    return fail(Reason::corrupt, "the manifest has a file in .wcache: " + std::string(path));
  if (child_position(children, child.name) != children.end())
    return fail(Reason::corrupt, "the manifest has '" + std::string(path) + "' twice");
  children.push_back(std::move(child));
  return {};
}

void Entry::sort_children() {
  for (Directory& directory : directories_)
    std::sort(directory.children.begin(), directory.children.end(),
              [](const Child& a, const Child& b) { return a.name < b.name; });
}

Entry::TensorRef Entry::tensor_ref(std::uint64_t number) const {
  const auto after = std::upper_bound(tensor_starts_.begin(), tensor_starts_.end(), number);
  const auto part = static_cast<std::uint32_t>(after - tensor_starts_.begin() - 1);
  return {part, number - tensor_starts_[part]};
}

std::optional<ManifestView::Tensor> Entry::tensor(std::uint64_t number) const {
  if (number >= tensor_count()) return std::nullopt;
  const TensorRef ref = tensor_ref(number);
  return parts_[ref.part]->manifest().tensor(ref.row);
}

std::optional<std::uint64_t> Entry::find_tensor(std::string_view name) const {
  for (std::size_t p = 0; p < parts_.size(); ++p) {
    const bool shown = tensor_starts_[p] < tensor_starts_[p + 1];
    const std::optional<std::size_t> row = parts_[p]->manifest().find_tensor(name);
    if (shown && row) return tensor_starts_[p] + *row;
  }
  return std::nullopt;
}

std::shared_ptr<const std::string> Entry::manifest_json() const {
  const std::lock_guard lock(text_mutex_);
  if (std::shared_ptr<const std::string> text = manifest_json_.lock()) return text;
  auto text = std::make_shared<const std::string>(wcache::manifest_json(manifest()));
  manifest_json_ = text;
  return text;
}

std::uint64_t Entry::manifest_json_nbytes() const {
  const std::lock_guard lock(text_mutex_);
  if (!manifest_json_nbytes_) {
    std::uint64_t sum = 0;
    write_manifest_json(manifest(), [&](std::string_view piece) { sum += piece.size(); });
    manifest_json_nbytes_ = sum;
  }
  return *manifest_json_nbytes_;
}

}  // namespace wcache

#include "core/manifest_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

namespace wcache {
namespace {

constexpr std::size_t kFlush = 64 << 10;

/// JSON text in the making. Objects are written by hand, so that a table of any length needs no tree in
/// memory.
class JsonText {
 public:
  explicit JsonText(TextSink sink) : sink_(std::move(sink)) {}
  JsonText(const JsonText&) = delete;
  JsonText& operator=(const JsonText&) = delete;
  ~JsonText() { flush(); }

  /// Text as it is: punctuation and line ends.
  JsonText& raw(std::string_view text) {
    text_ += text;
    if (text_.size() >= kFlush) flush();
    return *this;
  }

  JsonText& string(std::string_view value) { return raw(quoted(value)); }
  JsonText& number(std::uint64_t value) { return raw(std::to_string(value)); }

  /// `"key": ` after a comma where something stands before.
  JsonText& key(std::string_view name) {
    raw(std::exchange(first_, false) ? "" : ", ");
    return string(name).raw(": ");
  }
  JsonText& open(std::string_view bracket) {
    first_ = true;
    return raw(bracket);
  }
  JsonText& close(std::string_view bracket) {
    first_ = false;
    return raw(bracket);
  }

  JsonText& field(std::string_view name, std::string_view value) { return key(name).string(value); }
  JsonText& field(std::string_view name, std::uint64_t value) { return key(name).number(value); }
  JsonText& field(std::string_view name, std::int64_t value) { return key(name).raw(std::to_string(value)); }

  /// A name that need not be UTF-8.
  JsonText& name_field(std::string_view name, std::string_view bytes) {
    const std::string text = quoted(bytes);
    key(name).raw(text);
    // Only what was replaced brings U+FFFD in; a name that has it by itself may have the hex as well.
    if (text.find("\xef\xbf\xbd") == std::string::npos) return *this;
    constexpr std::string_view kDigits = "0123456789abcdef";
    std::string hex;
    for (char c : bytes) {
      hex += kDigits[static_cast<unsigned char>(c) >> 4];
      hex += kDigits[static_cast<unsigned char>(c) & 15];
    }
    return field(std::string(name) + "_hex", hex);
  }

  /// `rows` objects, one a line; `row` writes the fields of one, or returns false to leave it out.
  template <class Row>
  JsonText& table(std::string_view name, std::size_t rows, const Row& row) {
    first_ = false;
    raw(",\n ").string(name).raw(": [");
    bool any = false;
    for (std::size_t i = 0; i < rows; ++i)
      row(i, [&] { open(std::exchange(any, true) ? ",\n  {" : "\n  {"); });
    return raw(any ? "\n ]" : "]");
  }

 private:
  static std::string quoted(std::string_view value) {
    // Nearly all strings, and several a tensor.
    const auto plain = [](char c) { return c >= 0x20 && c < 0x7f && c != '"' && c != '\\'; };
    if (std::all_of(value.begin(), value.end(), plain)) return '"' + std::string(value) + '"';
    return nlohmann::json(value).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }
  void flush() {
    if (!text_.empty()) sink_(text_);
    text_.clear();
  }

  TextSink sink_;
  std::string text_;
  bool first_ = true;
};

std::string_view to_string(FileKind kind) {
  switch (kind) {
    case FileKind::other:
      return "other";
    case FileKind::safetensors:
      return "safetensors";
    case FileKind::gguf:
      return "gguf";
    case FileKind::opaque:
      return "opaque";
  }
  return "other";
}

void write_left_out(JsonText& json, const std::vector<LeftOut>& left_out) {
  json.table("left_out", left_out.size(), [&](std::size_t i, const auto& begin) {
    begin();
    json.name_field("name", left_out[i].name).field("why", left_out[i].why).close("}");
  });
}

void write_head(JsonText& json, const ManifestView& manifest) {
  const Placement placement = manifest.placement();
  json.open("{").field("fingerprint", to_hex(manifest.fingerprint())).field("role", manifest.role());
  json.field("layout", manifest.layout());
  json.field("rank", std::uint64_t{manifest.rank()}).field("tp_size", std::uint64_t{manifest.tp_size()});
  json.name_field("name", manifest.name()).name_field("source", manifest.source());
  json.field("architecture", manifest.architecture()).field("dtype", manifest.dtype());
  json.field("quantization", manifest.quantization()).field("tier", placement.tier);
  json.field("device_uuid", placement.device_uuid).field("ipc_kind", placement.ipc_kind);
  json.field("nbytes", manifest.nbytes());
  if (manifest.slab_count() == 0) return;
  json.key("slabs").raw("[");
  for (std::size_t slab = 0; slab < manifest.slab_count(); ++slab)
    json.raw(slab > 0 ? "," : "").number(manifest.slab_nbytes(slab));
  json.raw("]");
}

void write_files(JsonText& json, const ManifestView& manifest) {
  json.table("files", manifest.file_count(), [&](std::size_t row, const auto& begin) {
    const auto file = manifest.file(row);
    if (!file) return;
    begin();
    json.name_field("name", file->name).field("kind", to_string(file->kind)).field("nbytes", file->nbytes);
    json.field("mtime_ns", file->mtime_ns)
        .field("tensors", file->tensors)
        .field("digest", to_hex(file->digest));
    json.close("}");
  });
}

void write_tensors(JsonText& json, const ManifestView& manifest) {
  const bool slabs = manifest.placement().tier != "host";
  json.table("tensors", manifest.tensor_count(), [&](std::size_t row, const auto& begin) {
    const auto tensor = manifest.tensor(row);
    if (!tensor) return;
    begin();
    json.name_field("name", tensor->name).field("dtype", tensor->dtype).key("shape").raw("[");
    for (std::size_t i = 0; i < tensor->shape.size(); ++i)
      json.raw(i > 0 ? "," : "").number(tensor->shape[i]);
    json.raw("]").name_field("file", manifest.file(tensor->file)->name);
    json.field("offset", tensor->offset).field("nbytes", tensor->nbytes);
    if (slabs) json.field("slab", std::uint64_t{tensor->slab}).field("slab_offset", tensor->slab_offset);
    json.field("digest", to_hex(tensor->digest)).close("}");
  });
}

/// Files that some rank leaves out, each once.
std::vector<LeftOut> left_out_of(std::span<const ManifestView> ranks) {
  std::vector<LeftOut> all;
  for (const ManifestView& rank : ranks)
    for (LeftOut& one : rank.left_out()) all.push_back(std::move(one));
  std::stable_sort(all.begin(), all.end(),
                   [](const LeftOut& a, const LeftOut& b) { return a.name < b.name; });
  const auto same = [](const LeftOut& a, const LeftOut& b) { return a.name == b.name; };
  all.erase(std::unique(all.begin(), all.end(), same), all.end());
  return all;
}

}  // namespace

void write_manifest_json(const ManifestView& manifest, const TextSink& sink) {
  JsonText json(sink);
  write_head(json, manifest);
  write_files(json, manifest);
  write_tensors(json, manifest);
  write_left_out(json, manifest.left_out());
  json.raw("\n}\n");
}

std::string manifest_json(const ManifestView& manifest) {
  std::string text;
  write_manifest_json(manifest, [&](std::string_view piece) { text += piece; });
  return text;
}

Result<Key> key_of(std::span<const ManifestView> ranks) {
  if (ranks.empty()) return fail(Reason::internal, "a key needs the manifest of at least one rank");
  const Result<Role> role = role_from_string(ranks[0].role());
  const Result<Layout> layout = layout_from_string(ranks[0].layout());
  if (!role || !layout) return fail(Reason::corrupt, (role ? layout.error() : role.error()).message);
  Key key;
  key.role = *role;
  key.layout = *layout;
  key.tp_size = ranks[0].tp_size();
  for (const ManifestView& rank : ranks) {
    if (rank.role() != ranks[0].role() || rank.layout() != ranks[0].layout() || rank.tp_size() != key.tp_size)
      return fail(Reason::corrupt, "manifests of different entries");
    for (std::size_t row = 0; row < rank.file_count(); ++row) {
      const auto file = rank.file(row);
      if (!file)
        return fail(Reason::corrupt, "the manifest's row " + std::to_string(row) + " of files is damaged");
      key.files.push_back({std::string(file->name), file->nbytes, file->digest});
    }
    for (Key::File& file : rank.others()) key.files.push_back(std::move(file));
  }
  const auto by_name = [](const Key::File& a, const Key::File& b) { return a.name < b.name; };
  std::stable_sort(key.files.begin(), key.files.end(), by_name);
  const auto same = [](const Key::File& a, const Key::File& b) {
    return a.name == b.name && a.nbytes == b.nbytes && a.digest == b.digest;
  };
  key.files.erase(std::unique(key.files.begin(), key.files.end(), same), key.files.end());
  return key;
}

std::string fingerprint_json(const FingerprintText& text) {
  std::string out;
  {
    JsonText json([&](std::string_view piece) { out += piece; });
    const Key& key = text.key;
    json.open("{").field("fingerprint", to_hex(key.fingerprint())).field("role", wcache::to_string(key.role));
    if (!text.path.empty()) json.name_field("path", text.path);
    json.name_field("name", text.name);
    if (!text.source.empty()) json.name_field("source", text.source);
    json.raw(",\n \"fields\": ").open("{").field("key", std::uint64_t{Key::kVersion});
    json.field("role", wcache::to_string(key.role)).field("layout", wcache::to_string(key.layout));
    if (key.ranks_differ()) json.field("tp_size", std::uint64_t{key.tp_size});
    json.close("}").table("files", key.files.size(), [&](std::size_t i, const auto& begin) {
      begin();
      const Key::File& file = key.files[i];
      json.name_field("name", file.name).field("nbytes", file.nbytes).field("digest", to_hex(file.digest));
      if (i < text.how.size()) json.field("how", wcache::to_string(text.how[i]));
      json.close("}");
    });
    write_left_out(json, text.left_out);
    json.raw("\n}\n");
  }
  return out;
}

Result<std::string> fingerprint_json(std::span<const ManifestView> ranks) {
  Result<Key> key = key_of(ranks);
  if (!key) return fail(key.error());
  return fingerprint_json(
      FingerprintText{std::move(*key), left_out_of(ranks), ranks[0].name(), ranks[0].source(), {}, {}});
}

}  // namespace wcache

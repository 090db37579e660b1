// What of a model on disk is served, and what is left out: docs/checkpoints.md has the rules in words.

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>

#include "core/checkpoint/checkpoint.h"
#include "core/checkpoint/config.h"
#include "core/checkpoint/file_kind.h"
#include "core/checkpoint/model_path.h"
#include "core/checkpoint/scan.h"
#include "core/checkpoint/source_file.h"
#include "core/checkpoint/tensor_names.h"
#include "core/checkpoint/text.h"
#include "core/checkpoint/weight_index.h"
#include "core/format.h"

namespace wcache {
namespace {

constexpr std::string_view kIndex = "model.safetensors.index.json";
constexpr std::string_view kMistralIndex = "consolidated.safetensors.index.json";
constexpr std::string_view kTorchIndex = "pytorch_model.bin.index.json";
constexpr std::string_view kMtp =
    "mtp.safetensors";  // MTP drafts are shipped beside the index, and read all the same
constexpr std::string_view kConfig = "config.json";
constexpr std::uint64_t kLongestConfig = 16 << 20;
constexpr std::size_t kMostNamedInError = 3;

bool is_nested(std::string_view name) {
  return name.find('/') != std::string_view::npos;
}

/// The dtype that most bytes of the weights have.
std::string commonest_dtype(const std::vector<SourceFile>& files) {
  std::map<std::string_view, std::uint64_t> bytes;
  for (const SourceFile& file : files)
    for (const TensorInfo& tensor : file.tensors) bytes[tensor.dtype] += tensor.nbytes;
  const auto most = std::max_element(bytes.begin(), bytes.end(),
                                     [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == bytes.end() ? std::string() : std::string(most->first);
}

class DirectoryOpener {
 public:
  explicit DirectoryOpener(ModelPath where) : where_(std::move(where)) {}

  Result<Checkpoint> open();

 private:
  const FoundFile* find(std::string_view name) const;
  bool has_top_level_safetensors(std::string_view start) const;
  std::string_view governing_index() const;
  Status read_index();
  Status check_index_files() const;
  std::string why_left_out(const FoundFile& file, FileKind kind, bool has_safetensors) const;
  Status choose_files();
  Status check_weights_are_there() const;
  Status read_files();
  Status read_config(const OpenedSource& source);

  ModelPath where_;
  Scan scan_;
  std::optional<WeightIndex> index_;
  std::vector<std::pair<FoundFile, FileKind>> chosen_;
  Checkpoint checkpoint_;
  std::string gguf_architecture_;
};

Result<Checkpoint> DirectoryOpener::open() {
  Result<Scan> scan = scan_directory(where_.root);
  if (!scan) return fail(std::move(scan.error()));
  scan_ = std::move(*scan);
  if (scan_.files.empty())
    return fail(Reason::invalid, in_quotes(where_.root.string()) + " is an empty directory",
                "give a model's directory", "MODEL");
  checkpoint_.root = where_.root;
  checkpoint_.name = where_.name;
  checkpoint_.left_out = std::move(scan_.left_out);
  for (const auto step :
       {&DirectoryOpener::read_index, &DirectoryOpener::choose_files, &DirectoryOpener::read_files})
    if (Status status = (this->*step)(); !status) return fail(std::move(status.error()));
  if (Status status = settle_tensor_names(checkpoint_.files, index_ ? &*index_ : nullptr); !status)
    return fail(std::move(status.error()));
  if (checkpoint_.architecture.empty()) checkpoint_.architecture = gguf_architecture_;
  if (checkpoint_.dtype.empty()) checkpoint_.dtype = commonest_dtype(checkpoint_.files);
  std::sort(checkpoint_.left_out.begin(), checkpoint_.left_out.end(),
            [](const LeftOut& a, const LeftOut& b) { return a.name < b.name; });
  return std::move(checkpoint_);
}

const FoundFile* DirectoryOpener::find(std::string_view name) const {
  const auto at =
      std::lower_bound(scan_.files.begin(), scan_.files.end(), name,
                       [](const FoundFile& file, std::string_view wanted) { return file.name < wanted; });
  return at != scan_.files.end() && at->name == name ? &*at : nullptr;
}

bool DirectoryOpener::has_top_level_safetensors(std::string_view start) const {
  return std::any_of(scan_.files.begin(), scan_.files.end(), [&](const FoundFile& file) {
    return !is_nested(file.name) && kind_of_name(file.name) == FileKind::safetensors &&
           file.name.starts_with(start);
  });
}

/// Which index counts: Hugging Face's; Mistral's where its files are all there is; torch's where there are no
/// safetensors.
std::string_view DirectoryOpener::governing_index() const {
  if (find(kIndex) != nullptr) return kIndex;
  if (find(kMistralIndex) != nullptr && !has_top_level_safetensors("model")) return kMistralIndex;
  if (find(kTorchIndex) != nullptr && !has_top_level_safetensors("")) return kTorchIndex;
  return {};
}

Status DirectoryOpener::read_index() {
  const std::string_view name = governing_index();
  if (name.empty()) return {};
  const FoundFile& file = *find(name);
  if (file.problem) return fail(*file.problem);
  Result<OpenedSource> source = open_source(file.name, file.path, FileKind::other);
  if (!source) return fail(std::move(source.error()));
  Result<WeightIndex> index = read_weight_index(source->fd.get(), source->file.identity.nbytes, name);
  if (!index) return fail(std::move(index.error()));
  index_ = std::move(*index);
  return check_index_files();
}

Status DirectoryOpener::check_index_files() const {
  for (const std::string& name : index_->files) {
    if (kind_of_name(name) == FileKind::other)
      return fail(Reason::corrupt, printable(index_->name) + " names " + in_quotes(name) +
                                       " as weights, which is no weight file");
    if (find(name) != nullptr) continue;
    const auto entry = std::find_if(index_->weight_map.begin(), index_->weight_map.end(),
                                    [&name](const auto& pair) { return pair.second == name; });
    std::string message = printable(index_->name) + " names " + printable(name) + " (for tensor " +
                          in_quotes(entry->first) + "), ";
    for (const LeftOut& left : checkpoint_.left_out)
      if (name.starts_with(left.name + "/"))
        return fail(Reason::corrupt, message + "but " + printable(left.name) + " is " + left.why);
    return fail(Reason::corrupt, message + "which is not there",
                "the download is incomplete: download the missing file");
  }
  return {};
}

/// Empty for a file that is served.
std::string DirectoryOpener::why_left_out(const FoundFile& file, FileKind kind, bool has_safetensors) const {
  if (!is_weights(kind)) return file.special;
  if (index_ && index_->names(file.name)) return {};
  if (is_nested(file.name)) return "weights in a sub-directory that no index names";
  if (has_safetensors && is_torch_file(file.name)) return "safetensors are there, which engines prefer";
  if (index_ && file.name != kMtp) return "not named by " + index_->name;
  return {};
}

Status DirectoryOpener::choose_files() {
  bool has_safetensors = false;
  for (const FoundFile& file : scan_.files) {
    const bool counts = index_ ? index_->names(file.name) || file.name == kMtp : !is_nested(file.name);
    has_safetensors |= counts && kind_of_name(file.name) == FileKind::safetensors;
  }
  for (FoundFile& file : scan_.files) {
    const FileKind kind = kind_of_name(file.name);
    std::string why = why_left_out(file, kind, has_safetensors);
    if (!why.empty())
      checkpoint_.left_out.push_back({file.name, std::move(why)});
    else if (file.problem)
      return fail(std::move(*file.problem));
    else
      chosen_.emplace_back(std::move(file), kind);
  }
  return check_weights_are_there();
}

Status DirectoryOpener::check_weights_are_there() const {
  for (const auto& [file, kind] : chosen_)
    if (is_weights(kind)) return {};
  std::string message = in_quotes(where_.root.string()) + " holds no weights that could be served";
  std::size_t named = 0;
  for (const LeftOut& left : checkpoint_.left_out) {
    if (!is_weights(kind_of_name(left.name)) || named == kMostNamedInError) continue;
    message += (named++ == 0 ? "; left out: " : ", ") + printable(left.name) + " (" + left.why + ")";
  }
  return fail(Reason::invalid, std::move(message), "weights are files ending in " + known_weight_suffixes(),
              "MODEL");
}

Status DirectoryOpener::read_files() {
  for (const auto& [found, kind] : chosen_) {
    Result<OpenedSource> source = open_source(found.name, found.path, kind);
    if (!source) return fail(std::move(source.error()));
    if (Status status = read_header(*source); !status) return status;
    if (gguf_architecture_.empty()) gguf_architecture_ = source->architecture;
    if (found.name == kConfig)
      if (Status status = read_config(*source); !status) return status;
    checkpoint_.files.push_back(std::move(source->file));
  }
  return {};
}

Status DirectoryOpener::read_config(const OpenedSource& source) {
  const Result<std::string> text = read_text(source, kLongestConfig);
  if (!text) return fail(text.error());
  Result<ModelConfig> config = parse_model_config(*text, kConfig);
  if (!config) return fail(std::move(config.error()));
  checkpoint_.architecture = std::move(config->architecture);
  checkpoint_.dtype = std::move(config->dtype);
  checkpoint_.quantization = std::move(config->quantization);
  return {};
}

Result<Checkpoint> open_single_file(ModelPath where) {
  const FileKind kind = kind_of_name(where.name);
  if (!is_weights(kind)) {
    return fail(Reason::invalid, in_quotes(where.root.string()) + " is not a weight file",
                "give the model's directory, or a file ending in " + known_weight_suffixes(), "MODEL");
  }
  std::error_code error;
  const std::filesystem::path path = std::filesystem::canonical(where.root, error);
  if (error) return fail_errno("following " + in_quotes(where.root.string()), error.value());
  Result<OpenedSource> source = open_source(where.name, path, kind);
  if (!source) return fail(std::move(source.error()));
  if (Status status = read_header(*source); !status) return fail(std::move(status.error()));
  Checkpoint checkpoint;
  checkpoint.root = std::move(where.root);
  checkpoint.name = std::move(where.name);
  checkpoint.files.push_back(std::move(source->file));
  checkpoint.architecture = std::move(source->architecture);
  checkpoint.dtype = commonest_dtype(checkpoint.files);
  return checkpoint;
}

}  // namespace

Result<Checkpoint> open_checkpoint(const std::filesystem::path& model) {
  Result<ModelPath> where = locate_model(model);
  if (!where) return fail(std::move(where.error()));
  return where->is_directory ? DirectoryOpener(std::move(*where)).open()
                             : open_single_file(std::move(*where));
}

}  // namespace wcache

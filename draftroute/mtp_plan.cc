#include "draftroute/mtp_plan.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

namespace wcache::draftroute {
namespace {

constexpr std::string_view kDraftFile = "model.safetensors";
constexpr std::size_t kDataAlignment = 256;  // of the first tensor in the image: what GPU copies like best

/// A chosen tensor and the source it lies in.
struct Chosen {
  std::uint32_t source = 0;
  const TensorInfo* tensor = nullptr;
};
using Selection = std::map<std::string, Chosen>;  // sorted by name

std::string fill_in(std::string_view prefix, std::uint32_t layer, std::uint32_t hidden_layers) {
  std::string out(prefix);
  for (const auto& [mark, value] : {std::pair{std::string_view("{N+i}"), hidden_layers + layer},
                                    std::pair{std::string_view("{i}"), layer}})
    if (const std::size_t at = out.find(mark); at != std::string::npos)
      out.replace(at, mark.size(), std::to_string(value));
  return out;
}

bool counts_layers(const MtpFamily& family) {
  return std::any_of(family.prefixes.begin(), family.prefixes.end(),
                     [](std::string_view prefix) { return prefix.find('{') != std::string_view::npos; });
}

std::string joined(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : ", ") + word + "*";
  return out;
}

/// Takes every tensor whose name starts with one of `prefixes`; returns how many. A name that lies in two
/// files is refused: nothing says which one the engine would take.
Result<std::size_t> take(const Checkpoint& checkpoint, const std::vector<std::string>& prefixes,
                         Selection& selection) {
  std::size_t taken = 0;
  for (std::uint32_t i = 0; i < checkpoint.files.size(); ++i)
    for (const TensorInfo& tensor : checkpoint.files[i].tensors) {
      if (tensor.shadowed) continue;  // the index gives its name to another file
      const bool wanted = std::any_of(prefixes.begin(), prefixes.end(), [&](const std::string& prefix) {
        return tensor.name.starts_with(prefix);
      });
      if (!wanted) continue;
      const auto [at, fresh] = selection.try_emplace(tensor.name, Chosen{i, &tensor});
      if (!fresh && at->second.source != i)
        return fail(Reason::corrupt,
                    "tensor '" + tensor.name + "' lies in both " + checkpoint.files[at->second.source].name +
                        " and " + checkpoint.files[i].name,
                    "remove one of the two files");
      ++taken;
    }
  return taken;
}

bool has_own(const Selection& selection, std::string_view part) {
  return !part.empty() && std::any_of(selection.begin(), selection.end(), [&](const auto& chosen) {
    return chosen.first.find(part) != std::string::npos;
  });
}

/// The first of `modules` that the checkpoint has; the target's other spellings are not there then.
Status take_shared(const Checkpoint& checkpoint, const Words& modules, Selection& selection) {
  for (std::string_view module : modules) {
    const Result<std::size_t> taken = take(checkpoint, {std::string(module)}, selection);
    if (!taken) return tl::unexpected(taken.error());
    if (*taken > 0) return {};
  }
  return {};
}

Error no_tensors(const Checkpoint& checkpoint, const std::string& looked_for,
                 std::optional<std::uint32_t> layers) {
  return Error{Reason::invalid,
               checkpoint.root.string() + " has no MTP tensors: looked for " + looked_for +
                   "; config.json promises " +
                   (layers ? std::to_string(*layers) : std::string("no number of")) + " MTP layers",
               "use a checkpoint that was saved with its MTP layers, or another method", "method", 0};
}

Result<Selection> select_draft(const Checkpoint& checkpoint, const MtpFamily& family,
                               std::optional<std::uint32_t> layers, std::uint32_t hidden_layers) {
  Selection selection;
  const bool promised = layers.value_or(0) > 0;
  const bool may_be_silent = !layers && !counts_layers(family);
  for (const auto& prefixes : expand_prefixes(family, std::max(layers.value_or(1), 1u), hidden_layers)) {
    const Result<std::size_t> taken = take(checkpoint, prefixes, selection);
    if (!taken) return tl::unexpected(taken.error());
    if (*taken == 0) return fail(no_tensors(checkpoint, joined(prefixes), layers));
    if (!promised && !may_be_silent)
      return fail(Reason::invalid,
                  checkpoint.root.string() + " has MTP tensors (" + selection.begin()->first +
                      ", ...), but its config.json promises none",
                  "set " +
                      (family.layer_keys.empty() ? std::string("the layer count")
                                                 : std::string(*family.layer_keys.begin())) +
                      " in config.json",
                  "method");
  }
  return selection;
}

std::size_t alignment_of(std::string_view dtype) {
  if (dtype == "F64" || dtype == "I64" || dtype == "U64" || dtype == "C64") return 8;
  if (dtype == "F32" || dtype == "I32" || dtype == "U32") return 4;
  if (dtype == "F16" || dtype == "BF16" || dtype == "I16" || dtype == "U16") return 2;
  return 1;
}

/// The tensors in the order of their bytes, offsets counted from the start of the data.
std::vector<TensorInfo> lay_out(const Selection& selection) {
  std::vector<TensorInfo> tensors;
  for (const auto& [name, chosen] : selection) tensors.push_back(*chosen.tensor);
  std::stable_sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return alignment_of(a.dtype) > alignment_of(b.dtype);
  });
  std::uint64_t at = 0;
  for (TensorInfo& tensor : tensors) at = (tensor.offset = at) + tensor.nbytes;
  return tensors;
}

/// The safetensors header for tensors laid out by lay_out, its length word included, padded to
/// kDataAlignment.
std::string header_of(const std::vector<TensorInfo>& tensors) {
  nlohmann::json header = {{"__metadata__", {{"format", "pt"}}}};
  for (const TensorInfo& tensor : tensors)
    header[tensor.name] = {{"dtype", tensor.dtype},
                           {"shape", tensor.shape},
                           {"data_offsets", {tensor.offset, tensor.offset + tensor.nbytes}}};
  std::string text = header.dump();
  const std::size_t total = (8 + text.size() + kDataAlignment - 1) / kDataAlignment * kDataAlignment;
  text.resize(total - 8, ' ');
  std::string out;
  for (int shift = 0; shift < 64; shift += 8) out.push_back(static_cast<char>(text.size() >> shift & 0xff));
  return out + text;
}

ImagePlan draft_image(const Selection& selection, const std::vector<SourceFile>& files) {
  ImagePlan image;
  image.name = kDraftFile;
  image.kind = FileKind::safetensors;
  image.tensors = lay_out(selection);
  image.head = header_of(image.tensors);
  image.nbytes = image.head.size();
  for (TensorInfo& tensor : image.tensors) {
    const Chosen& chosen = selection.at(tensor.name);
    tensor.offset += image.head.size();
    image.nbytes = tensor.offset + tensor.nbytes;
    image.mtime_ns = std::max(image.mtime_ns, files[chosen.source].identity.mtime_ns);
    if (tensor.nbytes > 0)
      image.pieces.push_back({tensor.offset, chosen.source, chosen.tensor->offset, tensor.nbytes});
  }
  image.segments = segments_of(image.nbytes, image.tensors);
  return image;
}

}  // namespace

std::vector<std::vector<std::string>> expand_prefixes(const MtpFamily& family, std::uint32_t layers,
                                                      std::uint32_t num_hidden_layers) {
  std::vector<std::vector<std::string>> out;
  const std::uint32_t rounds = counts_layers(family) ? layers : 1;
  for (std::uint32_t layer = 0; layer < rounds; ++layer) {
    std::vector<std::string>& prefixes = out.emplace_back();
    for (std::string_view prefix : family.prefixes)
      prefixes.push_back(fill_in(prefix, layer, num_hidden_layers));
  }
  return out;
}

Result<EntryPlan> plan_mtp(Checkpoint checkpoint, const MtpFamily& family,
                           std::optional<std::uint32_t> layers, std::uint32_t num_hidden_layers,
                           SharedTensors shared) {
  if (shard_ranks(checkpoint) > 0)
    return fail(Reason::unsupported, "MTP drafts of checkpoints that are sharded by rank are not cached");
  Result<Selection> selection = select_draft(checkpoint, family, layers, num_hidden_layers);
  if (!selection) return tl::unexpected(selection.error());
  if (shared == SharedTensors::include) {
    const bool embedding = !has_own(*selection, family.own_embedding);
    const bool head = !has_own(*selection, family.own_head);
    if (embedding)
      if (const Status ok = take_shared(checkpoint, family.embeddings, *selection); !ok)
        return tl::unexpected(ok.error());
    if (head)
      if (const Status ok = take_shared(checkpoint, family.heads, *selection); !ok)
        return tl::unexpected(ok.error());
  }
  ImagePlan draft = draft_image(*selection, checkpoint.files);

  for (SourceFile& file : checkpoint.files) file.tensors.clear();
  EntryPlan plan = plan_checkpoint(std::move(checkpoint), Role::draft0);
  plan.layout = Layout::mtp;
  std::erase_if(plan.images, [](const ImagePlan& image) {
    return is_weights(image.kind) || image.name.ends_with(".safetensors.index.json");
  });
  const auto at =
      std::lower_bound(plan.images.begin(), plan.images.end(), draft.name,
                       [](const ImagePlan& image, const std::string& name) { return image.name < name; });
  plan.images.insert(at, std::move(draft));
  return plan;
}

}  // namespace wcache::draftroute

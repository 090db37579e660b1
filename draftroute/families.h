#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace wcache::draftroute {

/// A short fixed list of words, so that the tables below are plain constant data.
class Words {
 public:
  template <class... W>
  constexpr Words(W... words) : words_{std::string_view(words)...}, size_(sizeof...(words)) {}
  constexpr const std::string_view* begin() const { return words_.data(); }
  constexpr const std::string_view* end() const { return words_.data() + size_; }
  constexpr bool empty() const { return size_ == 0; }
  constexpr bool contains(std::string_view word) const {
    for (std::string_view w : *this)
      if (w == word) return true;
    return false;
  }

 private:
  std::array<std::string_view, 6> words_{};
  std::size_t size_ = 0;
};

/// One Multi-Token-Prediction family: how it is recognised, how many MTP layers its config promises, which
/// tensors of the checkpoint are the draft. A new family is a new row of kMtpFamilies. Source of the rows:
/// vLLM 0.32's config/speculative.py and model files.
struct MtpFamily {
  std::string_view draft_model_type;    ///< what the engine rewrites model_type to; also an accepted `method`
  std::string_view draft_architecture;  ///< likewise architectures[0]
  Words model_types;                    ///< config.json model_type, any of
  Words architectures;                  ///< or architectures[0], any of
  std::string_view model_type_part;     ///< or model_type contains this; empty: not used

  Words layer_keys;           ///< dotted config keys, first present wins, that hold the number of MTP layers
  std::uint32_t layers_else;  ///< the number where no key is present; 0: then unknown
  bool needs_positive_key;  ///< the row counts only where the key is above 0 (otherwise it is a plain model)

  /// Draft tensors: every name that starts with one of these. "{N+i}" stands for num_hidden_layers + i, "{i}"
  /// for i, i = 0 .. layers-1; the dot behind it is part of the prefix, so that layer 61 does not match 610.
  /// A row without prefixes is a draft with a checkpoint of its own: all tensors.
  Words prefixes;

  /// Modules of the target that the family's loaders read from the draft's directory, where the draft has no
  /// own copy: each is a prefix, so that quantisation scales come along. `own_embedding` and `own_head` are
  /// parts of draft tensor names that make the target's copy unnecessary; empty: the target's is always read.
  Words embeddings;
  Words heads;
  std::string_view own_embedding;
  std::string_view own_head;
};

/// The row for a config's model_type and architectures[0]; nullptr where it is no MTP family. `key_positive`
/// tells whether any of the row's layer keys is above 0 in this config (rows with needs_positive_key ask for
/// it).
struct FamilyQuery {
  std::string_view model_type;
  std::string_view architecture;
};
const MtpFamily* find_family(const FamilyQuery& query);

/// The row whose draft_model_type is this word; nullptr where there is none. These words are also the
/// deprecated aliases of method `mtp`, and the model_type of a draft directory written with the rewritten
/// config.
const MtpFamily* family_of_draft_type(std::string_view draft_model_type);

/// Whether `method` is one of vLLM's deprecated spellings of `mtp`.
bool is_mtp_alias(std::string_view method);

}  // namespace wcache::draftroute

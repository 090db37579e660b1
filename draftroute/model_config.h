#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "core/result.h"
#include "draftroute/families.h"

namespace wcache::draftroute {

/// A model directory's config.json, as far as a draft's fate hangs on it.
class ModelConfig {
 public:
  /// Reads `directory`/config.json. Reason::invalid, key `key`, where there is none or it is no JSON object:
  /// a hub id is not resolved here, the hint says to give a directory.
  static Result<ModelConfig> read(const std::filesystem::path& directory, std::string_view key);
  explicit ModelConfig(nlohmann::json json) : json_(std::move(json)) {}

  std::string model_type() const { return text("model_type"); }
  std::string architecture() const;  ///< architectures[0]; empty where there is none
  std::string text(std::string_view key) const;

  /// The value under a dotted key ("text_config.num_hidden_layers") where it is an integer >= 0.
  std::optional<std::uint32_t> count(std::string_view dotted) const;
  std::uint32_t num_hidden_layers() const;  ///< top level, then text_config; 0 when absent

 private:
  nlohmann::json json_;
};

/// A config seen as a draft's: the MTP family it is rewritten to, if any, and how many MTP layers it
/// promises.
struct DraftView {
  const MtpFamily* family = nullptr;    ///< nullptr: no MTP family
  std::string model_type;               ///< rewritten where there is a family
  std::string architecture;             ///< likewise
  std::optional<std::uint32_t> layers;  ///< n_predict; absent: the config does not say
};
DraftView draft_view(const ModelConfig& config);

}  // namespace wcache::draftroute

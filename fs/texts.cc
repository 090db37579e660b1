#include "fs/texts.h"

#include <nlohmann/json.hpp>

namespace wcache {
namespace {

using nlohmann::ordered_json;

constexpr std::string_view kReadme =
    R"(This is wcache: model weights that are already in memory, as files.

  target/<fingerprint>/   a model as it is on disk: config, tokenizer, weights; give this directory to an engine
  draft0/<fingerprint>/   a draft model for speculative decoding, the same way
  */by-name/<name>        links from a checkpoint's own name to its directory
  status.json             what the node serves and fills

A directory's name is the fingerprint of all that is in it. Inside, .wcache/ describes it: fingerprint.json says what the
fingerprint covers, manifest.json lists the tensors, tensors/ has a file for each of them, status.json says who holds it.

  getfattr -d -m user.wcache target/*/model*.safetensors     what is known of a file
  wcache status                                              the same for people

Nothing here can be written, and a directory never changes: another state of the model is another directory.
See wcachefs(8) and wcache(1).
)";

ordered_json holders_json(const std::vector<Holder>& holders) {
  ordered_json list = ordered_json::array();
  for (const Holder& holder : holders)
    list.push_back({{"pid", holder.pid}, {"command", holder.command}, {"since", holder.since}});
  return list;
}

ordered_json rank_json(const Entry& entry, const Part& part) {
  const ManifestView& manifest = part.manifest();
  const Placement placement = manifest.placement();
  ordered_json rank{{"rank", manifest.rank()}, {"state", to_string(entry.state())}};
  if (entry.state() == State::ready) rank["pid"] = part.daemon_pid();
  rank["device_uuid"] = placement.device_uuid;
  rank["tier"] = placement.tier;
  if (placement.tier == "cuda") rank["ipc_kind"] = placement.ipc_kind;
  rank["socket"] = part.socket();
  rank["nbytes"] = manifest.nbytes();
  return rank;
}

ordered_json group_json(const Entry& entry, const Entry* partner, const std::vector<Holder>& holders,
                        std::string_view mount) {
  const ManifestView& manifest = entry.manifest();
  ordered_json group{{"role", to_string(entry.role())},
                     {"name", entry.name()},
                     {"fingerprint", entry.directory_name()},
                     {"state", to_string(entry.state())}};
  group["path"] = std::string(mount) + "/" + entry.path();
  group["layout"] = manifest.layout();
  group["source"] = manifest.source();
  group["nbytes"] = entry.nbytes();
  group["tensors"] = entry.tensor_count();
  group["tp_size"] = manifest.tp_size();
  if (partner != nullptr)
    group[partner->role() == Role::draft0 ? "draft" : "target"] = std::string(mount) + "/" + partner->path();
  group["since"] = entry.since();
  group["holders"] = holders_json(holders);
  group["ranks"] = ordered_json::array();
  for (const auto& part : entry.parts()) group["ranks"].push_back(rank_json(entry, *part));
  return group;
}

std::string text_of(const ordered_json& json) {
  return json.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace

std::string_view readme_text() {
  return kReadme;
}

std::string entry_status_text(const Entry& entry, const Entry* partner, const std::vector<Holder>& holders,
                              std::string_view mount) {
  return text_of(group_json(entry, partner, holders, mount));
}

}  // namespace wcache

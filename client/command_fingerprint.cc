#include <CLI/CLI.hpp>
#include <memory>

#include "client/commands.h"
#include "client/resolve.h"
#include "core/entry_plan.h"
#include "core/format.h"
#include "core/manifest_json.h"
#include "draftroute/key_options.h"

namespace wcache {
namespace {

struct FingerprintOptions {
  std::string model;
  draftroute::KeyOptions key;
  std::string role = "target";
  bool json = false;
};

std::string human_text(const FingerprintText& text) {
  const Key& key = text.key;
  std::string out = to_hex(key.fingerprint()) + "\n";
  out += "role      " + std::string(to_string(key.role)) + "\n";
  out += "layout    " + std::string(to_string(key.layout)) + "\n";
  if (key.ranks_differ()) out += "tp_size   " + std::to_string(key.tp_size) + "\n";
  out += "name      " + printable(text.name) + "\n";
  out += "source    " + printable(text.source) + "\n";
  if (!text.path.empty()) out += "path      " + printable(text.path) + "\n";
  for (std::size_t i = 0; i < key.files.size(); ++i) {
    const Key::File& file = key.files[i];
    out += "file      " + to_hex(file.digest) + "  " + std::string(to_string(text.how[i])) + "  " +
           std::to_string(file.nbytes) + "  " + printable(file.name) + "\n";
  }
  for (const LeftOut& left : text.left_out)
    out += "left out  " + printable(left.name) + ": " + printable(left.why) + "\n";
  return out;
}

Result<int> run_fingerprint(const CommandContext& context, const FingerprintOptions& options) {
  const Result<Role> role = role_from_string(options.role);
  if (!role)
    return fail(Reason::invalid, "unknown role '" + printable(options.role) + "'",
                "the roles are target and draft0", "--role");
  const Result<draftroute::RouteRequest> request = options.key.request(options.model);
  if (!request) return fail(request.error());
  Result<ResolvedGroup> group = resolve_group(context, {*request, *role});
  if (!group) return fail(group.error());
  const std::string path = path_in_tree(context, *role, group->key.key.fingerprint());
  const FingerprintText text{std::move(group->key.key),
                             group->plan.left_out,
                             group->plan.name,
                             group->plan.source,
                             path,
                             group->key.how};
  print(context.out, options.json ? fingerprint_json(text) : human_text(text));
  return 0;
}

}  // namespace

Command add_fingerprint(CLI::App& app, CommandContext& context) {
  CLI::App* command =
      add_command(app, context, "fingerprint",
                  "Shows the fingerprint that MODEL has: every field of its key, and for each file whether "
                  "its digest was read or remembered. Files that are unchanged are not read again.");
  const auto options = std::make_shared<FingerprintOptions>();
  command
      ->add_option("MODEL", options->model,
                   "A local directory in Hugging Face layout, a hub cache snapshot, or a "
                   "single weight file.")
      ->type_name("MODEL")
      ->required();
  command
      ->add_option("--role", options->role,
                   "The role it would be served in: target or draft0. Default: target.")
      ->type_name("ROLE");
  options->key.add_to(*command);
  command->add_flag("--json", options->json, "Print JSON for programs.");
  return {command, [&context, options] { return run_fingerprint(context, *options); },
          [options] { return options->json; }};
}

}  // namespace wcache

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <thread>

#include "client/commands.h"
#include "client/mount_default.h"
#include "client/node_status.h"
#include "core/checkpoint/checkpoint.h"
#include "core/entry_plan.h"
#include "core/fingerprint.h"
#include "core/format.h"
#include "core/manifest_json.h"
#include "daemon/supervisor/console.h"

namespace wcache {
namespace {

struct FingerprintOptions {
  std::string model;
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

Result<DigestCache> open_digest_cache(const CommandContext& context) {
  const Result<std::filesystem::path> directory = digest_cache_dir(std::getenv, geteuid());
  if (!directory) return fail(directory.error());
  DigestCache cache = DigestCache::open(*directory);
  if (cache.trouble())
    print(context.err, "wcache: the digest cache is not used: " + printable(cache.trouble()->message) + "\n");
  return cache;
}

/// Where the entry is, or would be.
std::string path_of(const CommandContext& context, const Key& key) {
  const Result<std::string> run_dir = context.run_dir();
  if (!run_dir) return {};
  const Result<NodeStatus> node = collect_status(*run_dir);
  const std::string mount = node && node->mount ? node->mount->path : default_mount_path(geteuid(), *run_dir);
  return mount + "/" + std::string(to_string(key.role)) + "/" + to_hex(key.fingerprint());
}

Result<ResolvedKey> resolve(const CommandContext& context, const EntryPlan& plan) {
  Result<DigestCache> cache = open_digest_cache(context);
  if (!cache) return fail(cache.error());
  Console console(context.out, context.err, Console::columns_of(context.err));
  const auto began = Console::Clock::now();
  ResolveOptions options;
  options.threads = std::clamp(std::thread::hardware_concurrency(), 1U, 8U);
  options.progress = [&](std::uint64_t done, std::uint64_t total) {
    const auto now = Console::Clock::now();
    const double seconds = std::chrono::duration<double>(now - began).count();
    GroupProgress row{std::string(to_string(plan.role)), plan.name, "reading", done, total, 0};
    if (seconds > 0) row.rate = static_cast<double>(done) / seconds;
    if (done < total) console.show({row}, now);
  };
  return resolve_key(plan, *cache, options);
}

Result<int> run_fingerprint(const CommandContext& context, const FingerprintOptions& options) {
  const Result<Role> role = role_from_string(options.role);
  if (!role)
    return fail(Reason::invalid, "unknown role '" + printable(options.role) + "'",
                "the roles are target and draft0", "--role");
  Result<Checkpoint> checkpoint = open_checkpoint(options.model);
  if (!checkpoint) return fail(checkpoint.error());
  const EntryPlan plan = plan_checkpoint(std::move(*checkpoint), *role);
  Result<ResolvedKey> resolved = resolve(context, plan);
  if (!resolved) return fail(resolved.error());
  const std::string path = path_of(context, resolved->key);
  const FingerprintText text{
      std::move(resolved->key), plan.left_out, plan.name, plan.source, path, resolved->how};
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
  command->add_flag("--json", options->json, "Print JSON for programs.");
  return {command, [&context, options] { return run_fingerprint(context, *options); },
          [options] { return options->json; }};
}

}  // namespace wcache

#include <map>

#include "daemon/rendezvous/rendezvous.h"

namespace wcache {
namespace {

bool shares_files(Layout layout) {
  return layout == Layout::sharded || layout == Layout::published;
}

void note(std::string& differences, const std::string& field, const std::string& a, const std::string& b) {
  if (a == b) return;
  differences += (differences.empty() ? "" : ", ") + field + " (" + a + " and " + b + ")";
}

std::string fields_that_differ(const Key& a, const Key& b) {
  std::string out;
  note(out, "role", std::string(to_string(a.role)), std::string(to_string(b.role)));
  note(out, "layout", std::string(to_string(a.layout)), std::string(to_string(b.layout)));
  note(out, "tp_size", std::to_string(a.tp_size), std::to_string(b.tp_size));
  return out;
}

using FilesByName = std::map<std::string, std::pair<Key::File, std::size_t>>;  // with the node it came from

/// Adds the part's files; returns what differs from a file of that name that is there already.
std::string add_files(const Key& part, std::size_t node, FilesByName& files) {
  std::string out;
  for (const Key::File& file : part.files) {
    const auto [at, fresh] = files.try_emplace(file.name, file, node);
    if (fresh) continue;
    const Key::File& first = at->second.first;
    note(out, "nbytes of " + file.name, std::to_string(first.nbytes), std::to_string(file.nbytes));
    note(out, "digest of " + file.name, to_hex(first.digest), to_hex(file.digest));
  }
  return out;
}

/// For layouts in which every node holds everything: names that only one of two parts has.
std::string files_missing(const Key& a, const Key& b) {
  std::map<std::string, int> count;
  for (const Key::File& file : a.files) count[file.name] += 1;
  for (const Key::File& file : b.files) count[file.name] += 1;
  std::string out;
  for (const auto& [name, n] : count)
    if (n == 1) out += (out.empty() ? "" : ", ") + std::string("file ") + name + " (only on one of them)";
  return out;
}

}  // namespace

Result<Key> merge_parts(const std::vector<Key>& parts, const std::vector<std::string>& labels) {
  if (parts.empty()) return fail(Reason::internal, "a group without nodes");
  FilesByName files;
  for (std::size_t node = 0; node < parts.size(); ++node) {
    std::string differences = fields_that_differ(parts[0], parts[node]);
    if (differences.empty()) differences = add_files(parts[node], node, files);
    if (differences.empty() && !shares_files(parts[0].layout))
      differences = files_missing(parts[0], parts[node]);
    if (!differences.empty())
      return fail(Reason::mismatch, labels[node] + " and " + labels[0] + " disagree in " + differences,
                  "start the group from the same checkpoint, with the same options, on every node");
  }
  Key key = parts[0];
  key.files.clear();
  for (auto& [name, file] : files) key.files.push_back(std::move(file.first));
  return key;
}

}  // namespace wcache
